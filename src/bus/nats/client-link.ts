import { messageOf } from "../../core/index.ts";
import type { Incoming, Link, LinkDurable, Outgoing } from "../links/index.ts";

/** So many different complaints of one server are passed on, each cut to this length. */
const COMPLAINTS_MAX = 16;
const COMPLAINT_CHARACTERS_MAX = 300;

/** What both client libraries have in common: as much of it as a link needs. */
export interface Client<Headers extends ClientHeaders> {
  readonly info?: { readonly max_payload: number } | undefined;
  publish(subject: string, data: Uint8Array, options: { reply?: string; headers?: Headers }): void;
  subscribe(
    subject: string,
    options: {
      queue?: string;
      callback: (error: Error | null, message: ClientMessage) => void;
    },
  ): { unsubscribe(): void };
  flush(): Promise<void>;
  // biome-ignore lint/suspicious/noConfusingVoidType: as the libraries have it
  closed(): Promise<void | Error>;
  close(): Promise<void>;
  status(): AsyncIterable<ClientStatus>;
}

/** In one library the error itself, in the other its code and what it is about. */
interface ClientStatus {
  readonly type: string;
  readonly error?: Error;
  readonly data?: unknown;
  readonly permissionContext?: { readonly operation: string; readonly subject: string };
}

export interface ClientHeaders {
  readonly code: number;
  set(name: string, value: string): void;
  [Symbol.iterator](): Iterator<readonly [string, readonly string[]]>;
}

interface ClientMessage {
  readonly subject: string;
  readonly reply?: string;
  readonly data: Uint8Array;
  readonly headers?: ClientHeaders | undefined;
}

export interface ClientLinkOptions<Headers extends ClientHeaders> {
  readonly client: Client<Headers>;
  readonly server: string;
  newHeaders(): Headers;
  /** The server complained about something that ends neither connection nor subscription. */
  complain(why: string): void;
  /** What the end of a connection means, in words. */
  explain(thrown: unknown): string;
  readonly durable: LinkDurable;
  /** Breaks the socket below the library, where that can be had. */
  cut?(): void;
}

/** A connection of a client library whose own reconnecting is turned off. */
export class ClientLink<Headers extends ClientHeaders> implements Link {
  readonly #options: ClientLinkOptions<Headers>;
  readonly #client: Client<Headers>;
  readonly #made = new WeakMap<Readonly<Record<string, string>>, Headers>();
  readonly server: string;
  readonly payloadBytesMax: number;
  readonly closed: Promise<string>;
  readonly durable: LinkDurable;
  #resolveClosed: (why: string) => void = () => undefined;

  constructor(options: ClientLinkOptions<Headers>) {
    this.#options = options;
    this.#client = options.client;
    this.server = options.server;
    this.durable = options.durable;
    this.payloadBytesMax = this.#client.info?.max_payload ?? 2 ** 20;
    this.closed = new Promise((resolve) => {
      this.#resolveClosed = resolve;
    });
    const gone = (reason: unknown) => {
      this.#resolveClosed(
        reason instanceof Error ? options.explain(reason) : "the server closed the connection",
      );
    };
    this.#client.closed().then(gone, gone);
    void this.#listen();
  }

  /** Until the connection ends. The same words are passed on once. */
  async #listen(): Promise<void> {
    const told = new Set<string>();
    for await (const status of this.#client.status()) {
      const why = complaintIn(status);
      if (why === null || told.has(why) || told.size >= COMPLAINTS_MAX) continue;
      told.add(why);
      this.#options.complain(why);
    }
  }

  publish({ subject, data, reply, headers }: Outgoing): void {
    const options: { reply?: string; headers?: Headers } = {};
    if (reply !== null) options.reply = reply;
    if (headers !== null) options.headers = this.#headersOf(headers);
    this.#client.publish(subject, data, options);
  }

  /** Made once for headers that are used again and again. */
  #headersOf(plain: Readonly<Record<string, string>>): Headers {
    const known = this.#made.get(plain);
    if (known !== undefined) return known;
    const made = this.#options.newHeaders();
    for (const [name, value] of Object.entries(plain)) made.set(name, value);
    this.#made.set(plain, made);
    return made;
  }

  subscribe(
    subject: string,
    queue: string | undefined,
    deliver: (message: Incoming) => void,
    refused: (why: string) => void,
  ): () => void {
    const subscription = this.#client.subscribe(subject, {
      ...(queue === undefined ? {} : { queue }),
      callback: (error, message) => {
        if (error === null) deliver(plainMessage(message));
        else refused(messageOf(error));
      },
    });
    return () => subscription.unsubscribe();
  }

  confirm(): Promise<void> {
    return this.#client.flush();
  }

  end(why: string): void {
    this.#resolveClosed(why);
    this.#options.cut?.();
    this.#client.close().catch(() => undefined);
  }
}

/** Null for what is no complaint, and for what the subscription in question is told itself. */
function complaintIn({ type, error, data, permissionContext }: ClientStatus): string | null {
  if (type !== "error") return null;
  const { operation, subject } = permissionContext ?? {};
  const said = operation === undefined ? String(data) : `no permission: ${operation} ${subject}`;
  const why = (error?.message ?? said).slice(0, COMPLAINT_CHARACTERS_MAX);
  return /subscription/i.test(why) ? null : why;
}

/** As the bus hands messages over, with the status of their headers. */
export function plainMessage(message: ClientMessage): Incoming {
  const { subject, reply, data } = message;
  const { headers, status } = headersOf(message);
  // A copy: the library's view keeps the whole of what the socket read alive.
  return { subject, reply: reply ? reply : null, headers, data: new Uint8Array(data), status };
}

/**
 * The libraries decode headers when asked for them, and throw at names that are none. Thrown on
 * from here it would end the reading of the connection: such a message has no headers.
 */
function headersOf(message: ClientMessage): Pick<Incoming, "headers" | "status"> {
  const plain: Record<string, string> = Object.create(null);
  try {
    const { headers } = message;
    if (headers === undefined) return { headers: plain, status: 0 };
    for (const [name, values] of headers) plain[name] = values[0] ?? "";
    return { headers: plain, status: headers.code };
  } catch {
    return { headers: Object.create(null), status: 0 };
  }
}
