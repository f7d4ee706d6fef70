// SPDX-License-Identifier: MIT
import type { IncomingMessage, ServerResponse } from 'http';
import type { Database, Options } from './index';

declare global {
  namespace Express {
    interface Request {
      /** In the transaction of a guarded request. */
      db?: Database;
    }
  }
}
export function idempotency<Request extends IncomingMessage = any>(options: Options<Request>):
  (req: Request, res: ServerResponse, next: (error?: unknown) => void) => Promise<void>;
