import { messageOf } from "../core/index.ts";
import type {
  BrokerConnection,
  ClientHeaders,
  ClientJetStream,
  ClientMessage,
  Incoming,
  Outgoing,
} from "./connection.ts";

/** Maximum distinct error texts of one server that are reported, and maximum characters of each. */
const COMPLAINTS_MAX = 16;
const COMPLAINT_CHARACTERS_MAX = 300;

/** The methods that both client libraries have in common, as far as a connection uses them. */
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

/**
 * A status event of a client library. One library reports the error itself, the other one its code
 * and subject.
 */
interface ClientStatus {
  readonly type: string;
  readonly error?: Error;
  readonly data?: unknown;
  readonly permissionContext?: { readonly operation: string; readonly subject: string };
}

export interface ClientConnectionOptions<Headers extends ClientHeaders> {
  readonly client: Client<Headers>;
  readonly server: string;
  newHeaders(): Headers;
  /** Reports a server error that ends neither the connection nor a subscription. */
  complain(why: string): void;
  /** Translates the error that ended a connection into a message for operators. */
  explain(thrown: unknown): string;
  readonly durable: ClientJetStream;
  /** Closes the socket underneath the library. Absent if the socket is not accessible. */
  cut?(): void;
}

/** A connection through a client library whose own reconnecting is turned off. */
export class ClientConnection<Headers extends ClientHeaders> implements BrokerConnection {
  readonly #options: ClientConnectionOptions<Headers>;
  readonly #client: Client<Headers>;
  readonly #made = new WeakMap<Readonly<Record<string, string>>, Headers>();
  readonly server: string;
  readonly payloadBytesMax: number;
  readonly closed: Promise<string>;
  readonly durable: ClientJetStream;
  #resolveClosed: (why: string) => void = () => undefined;

  constructor(options: ClientConnectionOptions<Headers>) {
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

  /** Reports server errors until the connection ends. Repeated texts are reported once. */
  async #listen(): Promise<void> {
    const reported = new Set<string>();
    for await (const status of this.#client.status()) {
      const why = complaintIn(status);
      if (why === null || reported.has(why) || reported.size >= COMPLAINTS_MAX) continue;
      reported.add(why);
      this.#options.complain(why);
    }
  }

  publish({ subject, data, reply, headers }: Outgoing): void {
    const options: { reply?: string; headers?: Headers } = {};
    if (reply !== null) options.reply = reply;
    if (headers !== null) options.headers = this.#headersOf(headers);
    this.#client.publish(subject, data, options);
  }

  /**
   * Returns the library's header object for plain headers. Cached, because callers pass the same
   * object again and again.
   */
  #headersOf(plain: Readonly<Record<string, string>>): Headers {
    const known = this.#made.get(plain);
    if (known !== undefined) return known;
    const made = withHeaders(this.#options.newHeaders(), plain);
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

/** Adds plain headers to a client library's header object. */
export function withHeaders<Headers extends ClientHeaders>(
  headers: Headers,
  plain: Readonly<Record<string, string>>,
): Headers {
  for (const [name, value] of Object.entries(plain)) headers.set(name, value);
  return headers;
}

/**
 * Returns the error text of a status event. Null if it is not an error, or if a subscription
 * reports the error itself.
 */
function complaintIn({ type, error, data, permissionContext }: ClientStatus): string | null {
  if (type !== "error") return null;
  const { operation, subject } = permissionContext ?? {};
  const said = operation === undefined ? String(data) : `not permitted: ${operation} ${subject}`;
  const why = (error?.message ?? said).slice(0, COMPLAINT_CHARACTERS_MAX);
  return /subscription/i.test(why) ? null : why;
}

/** Converts a library's message. `status` is taken from its headers. */
export function plainMessage(message: ClientMessage): Incoming {
  const { subject, reply, data } = message;
  const { headers, status } = headersOf(message);
  // Copy the data, because the library's view keeps the socket's whole read buffer in memory.
  return { subject, reply: reply ? reply : null, headers, data: new Uint8Array(data), status };
}

/**
 * Returns the headers of a message. The libraries decode headers on first access and throw on
 * invalid names. An exception here would end reading from the connection, so a message with invalid
 * headers is delivered without any.
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
