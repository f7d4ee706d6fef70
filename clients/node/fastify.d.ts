// SPDX-License-Identifier: MIT
import type { Database, Options } from './index';

/** A plugin: app.register(idempotency, options). A guarded request has `db`. */
export function idempotency(app: any, options: Options<any>): Promise<void>;
export interface Guarded {
  db: Database | null;
}
