import { STATUS_CODES } from "node:http";
import type { Socket } from "bun";
import { type Clock, loopTurns } from "../core/index.ts";
import type { Api } from "./api.ts";
import type { Caller } from "./authorization.ts";
import { problemOf, refuse } from "./problem.ts";

export interface LocalCaller {
  readonly caller: Caller;
  /** User id by which connections are counted. */
  readonly uid: number;
  /** True for root and for the agent's own user, who always get a connection. */
  readonly isOwner: boolean;
}

export interface UnixServerOptions {
  readonly fetch: Api["fetch"];
  /**
   * Returns the caller according to the user that the kernel reports for the socket. Null: the
   * caller is refused.
   */
  readonly callerOf: (socket: object) => LocalCaller | null;
  readonly clock: Clock;
  readonly path: string;
  readonly onFault: (path: string, thrown: unknown) => void;
}

/** A listening socket. Disposing it removes its file and closes its connections. */
export type UnixServer = Disposable;

/**
 * Maximum connections of one user, and of all users together except root and the agent's own.
 * Further ones are closed immediately.
 */
const CONNECTIONS_OF_ONE_MAX = 16;
const CONNECTIONS_MAX = 64;
const HEAD_BYTES_MAX = 16 * 1024;
const BODY_BYTES_MAX = 1024 * 1024;
/** Maximum ms from the connect to the last byte of the request. */
const REQUEST_MS = 10_000;
/** Maximum ms until the client has read the response. */
const ANSWER_MS = 30_000;
const HEAD_END = Buffer.from("\r\n\r\n");

type ApiSocket = Socket<Exchange | null>;

/**
 * Serves the HTTP API on a Unix socket, one request per connection. The runtime's own server is
 * unsuitable, because it does not reveal the connection of a request, whose user is the credential
 * here. Throws the runtime's error if it cannot listen at the path.
 */
export function serveUnix(options: UnixServerOptions): UnixServer {
  const open = new Set<Exchange>();
  const seats = new Seats();
  const listener = Bun.listen<Exchange | null>({
    unix: options.path,
    socket: {
      open(socket) {
        loopTurns.touch();
        const local = options.callerOf(socket);
        const isIn = local !== null && seats.take(local);
        socket.data = isIn ? new Exchange(socket, local, options) : null;
        if (socket.data === null) socket.terminate();
        else open.add(socket.data);
      },
      data: (socket, chunk) => socket.data?.receive(chunk),
      drain: (socket) => socket.data?.drained(),
      close: (socket) => leave(socket),
      error: (socket) => leave(socket),
    },
  });
  const leave = ({ data }: ApiSocket) => {
    if (data === null || !open.delete(data)) return;
    seats.leave(data.local);
    data.closed();
  };
  return {
    [Symbol.dispose]() {
      listener.stop(true);
      for (const exchange of open) exchange.closed();
    },
  };
}

/** Counts connections per user, so that one user cannot use up all connections. */
class Seats {
  readonly #ofUid = new Map<number, number>();
  #ofOthers = 0;

  /**
   * Counts a new connection. Returns false if its user, or all users together, have the maximum.
   */
  take({ uid, isOwner }: LocalCaller): boolean {
    const own = this.#ofUid.get(uid) ?? 0;
    const isFull = own >= CONNECTIONS_OF_ONE_MAX || this.#ofOthers >= CONNECTIONS_MAX;
    if (isOwner ? own >= CONNECTIONS_MAX : isFull) return false;
    this.#ofUid.set(uid, own + 1);
    if (!isOwner) this.#ofOthers++;
    return true;
  }

  leave({ uid, isOwner }: LocalCaller): void {
    const left = this.#ofUid.get(uid)! - 1;
    if (left === 0) this.#ofUid.delete(uid);
    else this.#ofUid.set(uid, left);
    if (!isOwner) this.#ofOthers--;
  }
}

/** One request and its response on a connection. */
class Exchange {
  readonly local: LocalCaller;
  readonly #socket: ApiSocket;
  readonly #options: UnixServerOptions;
  readonly #gone = new AbortController();
  #deadline: Disposable;
  /** Bytes received so far; kept only until the head is complete. */
  #received: Buffer[] = [];
  #receivedBytes = 0;
  #head: ParsedHead | null = null;
  #isAsked = false;
  /** Rest of the response that the socket has not accepted yet. Null before the response exists. */
  #left: Uint8Array | null = null;

  constructor(socket: ApiSocket, local: LocalCaller, options: UnixServerOptions) {
    this.#socket = socket;
    this.local = local;
    this.#options = options;
    this.#deadline = options.clock.after(REQUEST_MS, () => socket.terminate());
  }

  receive(chunk: Uint8Array): void {
    // A second request on the connection is ignored. The response announces that the connection
    // closes.
    if (this.#isAsked) return;
    // Copied, because the runtime reuses its buffer.
    this.#received.push(Buffer.from(chunk));
    this.#receivedBytes += chunk.length;
    if (this.#head === null && !this.#readHead()) return;
    const { bodyBytes, headBytes } = this.#head!;
    if (this.#receivedBytes < headBytes + bodyBytes) return;
    const all = Buffer.concat(this.#received);
    void this.#ask(this.#head!, all.subarray(headBytes, headBytes + bodyBytes));
  }

  drained(): void {
    this.#flush();
  }

  closed(): void {
    this.#deadline[Symbol.dispose]();
    this.#gone.abort();
  }

  /** Parses the head. Returns true if it is complete and a body is expected. */
  #readHead(): boolean {
    const received = Buffer.concat(this.#received);
    this.#received = [received];
    const end = received.indexOf(HEAD_END);
    if (end > HEAD_BYTES_MAX || (end < 0 && received.length > HEAD_BYTES_MAX)) {
      this.#refuse(refuse("TOO_LARGE", `the head is longer than ${HEAD_BYTES_MAX} bytes`));
      return false;
    }
    if (end < 0) return false;
    const parsed = parseHead(received.subarray(0, end));
    if (typeof parsed === "string") {
      this.#refuse(refuse("REQUEST_INVALID", parsed, { status: 400 }));
      return false;
    }
    if (parsed.bodyBytes > BODY_BYTES_MAX) {
      this.#refuse(refuse("TOO_LARGE", `the body is longer than ${BODY_BYTES_MAX} bytes`));
      return false;
    }
    this.#head = parsed;
    if (parsed.expectsContinue) this.#socket.write("HTTP/1.1 100 Continue\r\n\r\n");
    return true;
  }

  async #ask({ method, path, headers }: ParsedHead, body: Uint8Array): Promise<void> {
    this.#isAsked = true;
    // No deadline applies from here on, because requests that change blocks may wait for the disk
    // without a limit.
    this.#deadline[Symbol.dispose]();
    try {
      const content = body.length === 0 ? {} : { body: Uint8Array.from(body) };
      const { signal } = this.#gone;
      const request = new Request(`http://localhost${path}`, {
        method,
        headers,
        signal,
        ...content,
      });
      const { caller } = this.local;
      const answer = await this.#options.fetch(request, { address: caller.from, caller });
      await this.#answer(answer, method);
    } catch (thrown) {
      this.#options.onFault(path, thrown);
      await this.#answer(problemOf(thrown), method);
    }
  }

  #refuse(problem: Response): void {
    this.#isAsked = true;
    void this.#answer(problem, "GET");
  }

  async #answer(response: Response, method: string): Promise<void> {
    const bytes = await responseBytes(response, method);
    if (this.#gone.signal.aborted) return;
    this.#left = bytes;
    this.#deadline[Symbol.dispose]();
    this.#deadline = this.#options.clock.after(ANSWER_MS, () => this.#socket.terminate());
    this.#flush();
  }

  #flush(): void {
    if (this.#left === null) return;
    const taken = this.#socket.write(this.#left);
    if (taken > 0) this.#left = this.#left.subarray(taken);
    if (this.#left.length > 0) return;
    this.#left = null;
    this.#socket.end();
  }
}

/** The head of a request, as returned by `parseHead`. */
interface ParsedHead {
  readonly method: string;
  /** Path of the request, with its query. */
  readonly path: string;
  readonly headers: Headers;
  /** Bytes of the request line and the headers, including the empty line at their end. */
  readonly headBytes: number;
  readonly bodyBytes: number;
  readonly expectsContinue: boolean;
}

const REQUEST_LINE = /^([A-Z]{1,16}) (\/[\x21-\x7e]*) HTTP\/1\.[01]$/;
const HEADER_LINE = /^([!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}):[ \t]*([\x20-\x7e\t]*)$/;
const LENGTH = /^[0-9]{1,15}$/;
const HEADERS_MAX = 64;

/**
 * Parses the head of a request up to the empty line. A returned string is the reason why it is
 * invalid. A body must be announced by Content-Length: with only one way to delimit requests, their
 * limits cannot be ambiguous.
 */
function parseHead(bytes: Uint8Array): ParsedHead | string {
  const [first = "", ...lines] = Buffer.from(bytes).toString("latin1").split("\r\n");
  const request = REQUEST_LINE.exec(first);
  if (request === null) return "the request line does not have the form METHOD /PATH HTTP/1.1";
  if (lines.length > HEADERS_MAX) return `more than ${HEADERS_MAX} headers`;
  const headers = new Headers();
  for (const line of lines) {
    const match = HEADER_LINE.exec(line);
    if (match === null) return "a header is not NAME: VALUE in printable ASCII";
    headers.append(match[1], match[2].trimEnd());
  }
  if (headers.has("transfer-encoding")) return "send Content-Length, not Transfer-Encoding";
  const length = headers.get("content-length") ?? "0";
  // If the header occurs twice, the two values are joined by a comma.
  if (!LENGTH.test(length)) return "Content-Length is not one number";
  return {
    method: request[1],
    path: request[2],
    headers,
    headBytes: bytes.length + 4,
    bodyBytes: Number(length),
    expectsContinue: headers.get("expect")?.toLowerCase() === "100-continue",
  };
}

/** Encodes a response. The connection closes when it is sent. */
async function responseBytes(response: Response, method: string): Promise<Uint8Array> {
  const body = Buffer.from(await response.arrayBuffer());
  const lines = [`HTTP/1.1 ${response.status} ${STATUS_CODES[response.status] ?? "-"}`];
  response.headers.forEach((value, name) => {
    if (name !== "content-length" && name !== "connection") lines.push(`${name}: ${value}`);
  });
  lines.push(`content-length: ${body.length}`, "connection: close", "", "");
  const head = Buffer.from(lines.join("\r\n"), "latin1");
  return method === "HEAD" ? head : Buffer.concat([head, body]);
}
