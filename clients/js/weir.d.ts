/** A message of a channel. */
export interface Message {
  channel: string;
  /** The payload: JSON as it was published, text as a string, binary as a string of base64. */
  data: unknown;
  /** Its position, and its place in the namespace's log; absent with durability `none`. */
  id?: string;
  offset?: number;
  /** When the server stored it, in milliseconds since 1970. */
  time: number;
  /** The conflation key, and the publisher's own id, event type and tags, where there are any. */
  key?: string;
  message_id?: string;
  event?: string;
  tags?: Record<string, string>;
}

/** Messages between `from` and `to` may be missing: load the state anew. */
export interface Gap {
  namespace: string;
  from: string;
  to?: string;
  reason: 'retention' | 'epoch' | 'unknown' | 'overflow' | (string & {});
}

/** The server ended the connection, by a code of its own: 4401 the token expired, 4408 this client was too slow, 1012 a restart. */
export interface End {
  code: number;
  reason: string;
}

/** What went wrong. `status` is that of an answer, `code` that of an `end`, where there was one. */
export interface Failure {
  message: string;
  status?: number;
  code?: number;
  hint?: string;
}

export interface Events {
  /** The stream runs. */
  open: { transport: 'ws' | 'sse' };
  message: Message;
  gap: Gap;
  end: End;
  /** There is no connection; the next attempt is made after `retry` milliseconds. */
  down: { error: Failure; retry: number };
  /** The stream has ended for good: the request itself was refused. */
  error: Failure;
}

export interface Options {
  /** Channels to follow; more can be added later. */
  channels?: string | Iterable<string>;
  /** Where to begin: a position that a stream had, "0" for all that is retained. Without it: what comes from now on. */
  since?: string;
  /** A JWT; or what returns one, called at the start and whenever the server says that the last one has expired. */
  token?: string | (() => string | Promise<string>);
  /** What to try, in this order; `['ws', 'sse']` without it. */
  transports?: Array<'ws' | 'sse'>;
  /**
   * The longest wait before another attempt in milliseconds, 30,000 if it is not given. It is sent to the server, which sends
   * something every 0.8 times that, if this is sooner than otherwise: for browsers and systems that throttle or forget
   * what is silent.
   */
  maxBackoff?: number;
  /**
   * One connection for all tabs of this origin, where SharedWorkers are. Tabs that give the same text share one; give each
   * user's own, since a shared stream has one token.
   */
  share?: boolean | string;
}

export interface Stream {
  /** Calls `listener` for each event of a type; returns what ends that. */
  on<T extends keyof Events>(type: T, listener: (event: Events[T]) => void): () => void;
  subscribe(...channels: string[]): void;
  unsubscribe(...channels: string[]): void;
  /** Everything up to here was delivered. Treat it as opaque; as `since` it continues there. */
  readonly position: string;
  readonly channels: string[];
  close(): void;
}

/** Follows channels of the server at `url`. */
export function connect(url: string | URL, options?: Options): Stream;
