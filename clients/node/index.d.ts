// SPDX-License-Identifier: MIT
/// <reference types="node" />
export interface Fingerprinted {
  method: string;
  path: string;
  query: string;
  headers: ReadonlyArray<readonly [string, string]>;
  body: Buffer;
  listed?: readonly string[];
  ignore?: readonly string[];
}
/** 33 bytes for semel.key_begin. */
export function fingerprint(request: Fingerprinted): Buffer;

/** What a handler is given of its transaction. */
export interface Database {
  query(text: string, values?: readonly unknown[]): Promise<{ rows: any[]; rowCount: number | null }>;
}

export interface Options<Request> {
  /** A Pool of pg. */
  pool: { connect(): Promise<any> };
  /** Whom the key belongs to; null or undefined: nobody is known. */
  caller(request: Request): string | null | undefined | Promise<string | null | undefined>;
  rule?(method: string, path: string): 'required' | 'optional' | 'off';
  anonymous?: boolean;
  listed?: readonly string[];
  ignore?: readonly string[];
  answer?: string;
  keep?: string;
  /** Seconds. */
  wait?: number;
  timeout?: number;
  /** Bytes. */
  maxBody?: number;
  maxStored?: number;
  maxAnswer?: number;
  log?(text: string): void;
}
