import { STATUS_CODES } from "node:http";
import type { Socket } from "bun";
import { type Clock, loopTurns } from "../core/index.ts";
import type { Api } from "./api.ts";
import type { Caller } from "./authorization.ts";
import { problemOf, refuse } from "./problem.ts";

export interface LocalCaller {
  readonly caller: Caller;
  /** Whose connections are counted together. */
  readonly uid: number;
  /** Root, or the agent's own user: gets in whatever others keep open. */
  readonly isOwner: boolean;
}

export interface UnixServerOptions {
  readonly fetch: Api["fetch"];
  /** Who connected, by what the kernel says of the socket; null: it is not let in. */
  readonly callerOf: (socket: object) => LocalCaller | null;
  readonly clock: Clock;
  readonly path: string;
  readonly onFault: (path: string, thrown: unknown) => void;
}

/** A listening socket. Disposing it takes its file away and ends connections under way. */
export type UnixServer = Disposable;

/** Connections at a time of one user, and of all but the owners; the next is closed at once. */
const CONNECTIONS_OF_ONE_MAX = 16;
const CONNECTIONS_MAX = 64;
const HEAD_BYTES_MAX = 16 * 1024;
const BODY_BYTES_MAX = 1024 * 1024;
/** From the connection to the last byte of its request. */
const REQUEST_MS = 10_000;
/** In which the caller takes its answer. */
const ANSWER_MS = 30_000;
const HEAD_END = Buffer.from("\r\n\r\n");

type ApiSocket = Socket<Exchange | null>;

/**
 * The HTTP API on a Unix socket, a request for each connection. The runtime's own server does not
 * say whose connection a request came by, and here that is the credential. Throws what the runtime
 * throws if the path cannot be listened at.
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

/** Counts connections, so that no caller keeps others out. */
class Seats {
  readonly #ofUid = new Map<number, number>();
  #ofOthers = 0;

  /** False if the caller has as many as it may have. */
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

/** One request and its answer. */
class Exchange {
  readonly local: LocalCaller;
  readonly #socket: ApiSocket;
  readonly #options: UnixServerOptions;
  readonly #gone = new AbortController();
  #deadline: Disposable;
  /** Until the head is there in one piece. */
  #received: Buffer[] = [];
  #receivedBytes = 0;
  #head: ParsedHead | null = null;
  #isAsked = false;
  /** What of the answer the socket has not taken yet; null before there is one. */
  #left: Uint8Array | null = null;

  constructor(socket: ApiSocket, local: LocalCaller, options: UnixServerOptions) {
    this.#socket = socket;
    this.local = local;
    this.#options = options;
    this.#deadline = options.clock.after(REQUEST_MS, () => socket.terminate());
  }

  receive(chunk: Uint8Array): void {
    // A second request on one connection is not read: the answer says that it closes.
    if (this.#isAsked) return;
    // A copy: the runtime uses its buffer again.
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

  /** Whether the head is there and the body is to be waited for. */
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
    // What changes blocks waits for the disk, however long that takes.
    this.#deadline[Symbol.dispose]();
    try {
      const content = body.length === 0 ? {} : { body: Uint8Array.from(body) };
      const { signal } = this.#gone;
      const request = new Request(`http://localhost${path}`, {
        ...{ method, headers, signal },
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

/** The first part of a request, as `parseHead` reads it. */
interface ParsedHead {
  readonly method: string;
  /** With its query. */
  readonly path: string;
  readonly headers: Headers;
  /** Of the request line and the headers, with the empty line behind them. */
  readonly headBytes: number;
  readonly bodyBytes: number;
  readonly expectsContinue: boolean;
}

const REQUEST_LINE = /^([A-Z]{1,16}) (\/[\x21-\x7e]*) HTTP\/1\.[01]$/;
const HEADER_LINE = /^([!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}):[ \t]*([\x20-\x7e\t]*)$/;
const LENGTH = /^[0-9]{1,15}$/;
const HEADERS_MAX = 64;

/**
 * Reads a request's head, all before the empty line. A string says what is wrong. Only bodies with
 * a length are taken: one way to say where a request ends cannot contradict another.
 */
function parseHead(bytes: Uint8Array): ParsedHead | string {
  const [first = "", ...lines] = Buffer.from(bytes).toString("latin1").split("\r\n");
  const request = REQUEST_LINE.exec(first);
  if (request === null) return "the request line is not METHOD /PATH HTTP/1.1";
  if (lines.length > HEADERS_MAX) return `more than ${HEADERS_MAX} headers`;
  const headers = new Headers();
  for (const line of lines) {
    const match = HEADER_LINE.exec(line);
    if (match === null) return "a header is not NAME: VALUE in printable ASCII";
    headers.append(match[1]!, match[2]!.trimEnd());
  }
  if (headers.has("transfer-encoding")) return "send Content-Length, not Transfer-Encoding";
  const length = headers.get("content-length") ?? "0";
  // Two lengths come as one value with a comma.
  if (!LENGTH.test(length)) return "Content-Length is not one number";
  return {
    method: request[1]!,
    path: request[2]!,
    headers,
    headBytes: bytes.length + 4,
    bodyBytes: Number(length),
    expectsContinue: headers.get("expect")?.toLowerCase() === "100-continue",
  };
}

/** An answer as it goes over the wire; the connection closes behind it. */
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
