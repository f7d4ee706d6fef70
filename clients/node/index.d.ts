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
  query(text: any, values?: any[]): Promise<{ rows: any[]; rowCount: number | null }>;
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

// ---- the inbox and the outbox --------------------------------------------------------------------------------------

/** Throw one of its kinds in a handler. The text is kept with the message: no secrets in it. */
export class Failure extends Error {}
/** It may work later: tried again with backoff, at last a dead letter. */
export class Transient extends Failure {}
/** It never will: a dead letter. */
export class Permanent extends Failure {}
/** The business refuses it. Final, and no dead letter. */
export class Rejected extends Failure {}
/** The effect, outside this database, may have happened: kept for a reconcile or a person. */
export class Unknown extends Failure {}

/** Nothing is settled: acknowledge nothing, and let the broker deliver it again. */
export class StoreError extends Error {}
/** The server is away, or its answer is. The same call may be repeated. */
export class Unavailable extends StoreError {}
/** Somebody must fix the schema, the rights, the settings or the program first. */
export class Unusable extends StoreError {}

export interface Delivery {
  /** Of the event. An id, key, source, version or time that cannot be stored makes the message a quarantined one: also a
   *  number above Number.MAX_SAFE_INTEGER. One of another type is a TypeError. */
  id: string | number | bigint | null | undefined;
  /** What came: bytes, text, anything that JSON can write; null is a record without a value. */
  body: unknown;
  headers?: Record<string, unknown>;
  source?: string;
  type?: string;
  orderKey?: string | number | bigint;
  version?: number | bigint | string;
  businessKey?: string | number | bigint;
  /** A text is of ISO 8601, and in UTC where it names no zone. */
  time?: Date | string;
  fingerprint?: Uint8Array;
}

/** What a handler is given. */
export class Message implements Delivery {
  constructor(fields: Delivery);
  id: string | number | bigint | null | undefined;
  body: unknown;
  headers: Record<string, unknown>;
  source: string;
  type?: string;
  orderKey?: string | number | bigint;
  version?: number | bigint | string;
  businessKey?: string | number | bigint;
  attempt: number;
  consumer: string;
  readonly raw: Buffer;
  /** The body, parsed. What is no JSON is a permanent failure. */
  json(): any;
  /** 64 hexadecimal digits for the Idempotency-Key of an outside call, the same for ever. `semel inbox show` has that
   *  of the step 'effect'; who makes several calls names a step for each. */
  key(step?: string): string;
}

/** What became of a delivery: docs/sql-postgres.md. */
export interface Answer {
  act: 'run' | 'ack' | 'later';
  why: string;
  attempt: number;
  outcome: any;
  /** After a failure: of its record. */
  status: string | null;
  dueAt: Date | null;
  /** false: the broker must deliver it again, after a pause. */
  acknowledge: boolean;
}

type Kind = new (...args: any[]) => Error;
export interface InboxOptions {
  effect?: 'atomic' | 'outside' | 'keyed';
  /** The handler is given all messages of a batch at once. */
  batch?: boolean;
  /** Seconds. */
  lease?: number;
  tries?: number;
  transient?: readonly Kind[];
  permanent?: readonly Kind[];
  rejected?: readonly Kind[];
  unknown?: readonly Kind[];
  log?(text: string): void;
}

export interface Work {
  signal?: AbortSignal;
  batch?: number;
  /** Seconds. */
  every?: number;
  tick?: boolean;
}

export class Inbox {
  constructor(consumer: string, pool: { connect(): Promise<any> },
    handler: (tx: Database, message: Message) => unknown,
    options?: InboxOptions & { effect?: 'atomic'; batch?: false });
  constructor(consumer: string, pool: { connect(): Promise<any> },
    handler: (tx: Database, messages: Message[]) => unknown,
    options: InboxOptions & { effect?: 'atomic'; batch: true });
  constructor(consumer: string, pool: { connect(): Promise<any> },
    handler: (message: Message) => unknown,
    options: InboxOptions & { effect: 'outside' | 'keyed'; batch?: false });
  /** Runs the handler, unless the message is a copy. What is returned is committed. */
  deliver(message: Delivery): Promise<Answer>;
  /** The same for a batch in one transaction: an answer for each. */
  deliverMany(messages: readonly Delivery[]): Promise<Answer[]>;
  /** Stores a message in your transaction, to be run by work(). A text is of ISO 8601, in UTC where it names no zone. */
  put(tx: Database, message: Delivery, notBefore?: Date | string): Promise<Answer>;
  /** Runs stored messages when they are due, and the housekeeping, until the signal comes. */
  work(options?: Work): Promise<void>;
  /** Runs stored messages that are due now, until the signal comes; how many there were. */
  workOnce(batch?: number, signal?: AbortSignal): Promise<number>;
}

export interface EventOptions {
  headers?: Record<string, string>;
  id?: string;
  /** Events of an aggregate leave in the order of their commits. */
  lock?: boolean;
}

/** Events of one kind of aggregate. put() is a part of your transaction: rolled back means never sent. */
export class Outbox {
  constructor(aggregatetype: string, destination?: string);
  /** Gives the id of the event. */
  put(tx: Database, aggregateid: string | number | bigint, type: string, body: unknown,
    options?: EventOptions): Promise<string>;
}
