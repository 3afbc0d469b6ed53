import { BodyBudget, type BodyLimits, readBody } from "../core/http/index.ts";
import {
  type Clock,
  HearthError,
  loopTurns,
  messageOf,
  NamedSources,
  type TurnSource,
} from "../core/index.ts";
import type { Native } from "../native/index.ts";
import { API_REFUSALS, type ApiRefusal, descriptorUse } from "../observability/index.ts";
import type { ServerTls } from "./access.ts";
import {
  type Access,
  type Caller,
  Callers,
  createAuthorization,
  needsCredentials,
} from "./authorization.ts";
import { refuseBody } from "./body.ts";
import { problemOf, refuse } from "./problem.ts";
import { AGENT_RULES, pathOf, type RouteRules } from "./route-rules.ts";
import { createRoutes } from "./routes.ts";
import type { ApiServices } from "./services.ts";

export interface ApiOptions {
  readonly version: string;
  readonly clock: Clock;
  readonly access: Access;
  /**
   * Host names, in addition to loopback names, that are accepted in requests without credentials.
   */
  readonly hosts?: readonly string[];
  /** Maximum bytes of a body. Longer bodies get status 413. Default: 1 MiB. */
  readonly bodyBytesMax?: number;
  /** Origins of web pages that may use the API from a browser. Default: none. */
  readonly corsOrigins?: readonly string[];
  /** Maximum bytes of all bodies together. Default: 64 MiB. */
  readonly bodyBudgetBytes?: number;
  /** Maximum ms from the head of a request to the last byte of its body. Default: 10 s. */
  readonly bodyTimeoutMs?: number;
  /**
   * Maximum open connections. Above it, idle ones are closed and requests on new ones are refused.
   * Default: 1,024.
   */
  readonly connectionsMax?: number;
  /**
   * Maximum connections that wait for `accept`. The runtime accepts all of them in one turn of the
   * event loop, about 13 µs each. The client's kernel retries further ones after a second. Default:
   * 512, which is also the runtime's default.
   */
  readonly backlog?: number;
  /**
   * Native functions that find idle connections and set the listener's limits. Without them, idle
   * connections are not closed.
   */
  readonly native?: Pick<Native, "endSilent" | "tuneListener">;
  /** True if GET /flush_cache empties the cache, as on SGLang's server. Default: false. */
  readonly flushByGet?: boolean;
  /** Seconds without traffic after which a connection is closed. Default: 30. */
  readonly idleSeconds?: number;
  /** Maximum ms that disposing the server waits for responses in progress. Default: 1 s. */
  readonly stopMs?: number;
  /** Called with each internal error and the path of its request. */
  readonly onFault: (path: string, thrown: unknown) => void;
  /** Called when callers are refused, at most once a minute for each reason. */
  readonly onRefused?: (note: RefusalNote) => void;
}

export interface ListenOptions {
  /** Address or host name to listen on. Default: `127.0.0.1`. */
  readonly host?: string;
  /** Port to listen on. 0: any free port. */
  readonly port: number;
}

/** A listening server. Disposing it waits for responses in progress, at most `stopMs` ms. */
export interface ApiServer extends AsyncDisposable {
  readonly host: string;
  /** The port on which the server listens. */
  readonly port: number;
  /**
   * Base URL without a path, such as `http://127.0.0.1:7171`; begins with `https:` if the server
   * uses TLS.
   */
  readonly url: string;
}

/** The connection on which a request arrived. */
export interface ClientConnection {
  readonly address: string;
  /**
   * The caller, if the connection itself identifies it. Absent: the request's credentials identify
   * the caller.
   */
  readonly caller?: Caller;
  /** Called once the whole body has arrived. From then on, the response may take any time. */
  readonly onBody?: () => void;
}

export interface Api {
  /** Handles a request as the server would, without a socket. */
  fetch(request: Request, connection?: ClientConnection): Promise<Response>;
  /**
   * Starts a server. Throws SOCKET_IN_USE if the address is in use, and CONFIG_INVALID if it is not
   * available.
   */
  listen(options: ListenOptions): ApiServer;
  /** Returns the number of refused callers since the start, by reason. */
  refusals(): ReadonlyMap<ApiRefusal, number>;
}

const BODY_BYTES_MAX = 1024 * 1024;
const BODY_BUDGET_BYTES = 64 * 1024 * 1024;
const BODY_TIMEOUT_MS = 10_000;
const CONNECTIONS_MAX = 1_024;
/**
 * Number of bytes by which a body may exceed the limit and still get a response with the reason,
 * for example a command that names its blocks in hex. At most `bodyBytesMax` bytes of such a body
 * are kept. The runtime itself answers longer bodies, without a reason.
 */
const EXPLAINED_BYTES = 8 * 1024 * 1024;
const IDLE_SECONDS = 30;
const STOP_MS = 1_000;
/**
 * Maximum client addresses with event-loop slices of their own. All further addresses share slices.
 */
const ADDRESSES_MAX = 8;
const LOOPBACK_ADDRESS = /^(?:localhost|127(?:\.\d{1,3}){3}|::1)$/;

export function createApi(services: ApiServices, options: ApiOptions): Api {
  const { version, access, onFault } = options;
  const callers = new Callers();
  const { flushByGet = false } = options;
  const routes = createRoutes(services, { version, access, callers, onFault, flushByGet });
  return createServer(options, {
    rules: AGENT_RULES,
    handle(request, caller, source) {
      callers.set(request, caller, source);
      return routes.handle(request);
    },
  });
}

/**
 * A handler that runs behind authorization and limits. It gets only permitted requests, with their
 * whole body.
 */
export interface RequestHandler {
  readonly rules: RouteRules;
  /** Handles a request, in time slices of the caller's `source`. */
  handle(request: Request, caller: Caller, source: TurnSource): Promise<Response>;
  /**
   * Handlers of frequently used routes by method and path, which bypass the framework for speed. A
   * handler gets the body, and a signal that fires if the caller disconnects. It must not reject.
   */
  readonly direct?: Readonly<Record<string, Direct>>;
  /**
   * If set, handles all requests in place of `handle` and `direct`. It gets the server's own
   * request, whose body is not read yet. Must not reject.
   */
  readonly own?: (request: Request, onBody: () => void) => Promise<Response>;
  /** Returns the response to a refused caller, if it must not be a problem document. */
  readonly refused?: (problem: Response, request: Request) => Promise<Response>;
  /** Returns the caller's token. Default: the bearer token of `Authorization`. */
  readonly credential?: (headers: Headers) => string | null;
}

type Direct = (body: Uint8Array, signal: AbortSignal) => Promise<Response>;

/** Returns a server that adds authorization, limits and TLS to a handler. */
export function createServer(options: Omit<ApiOptions, "version">, handler: RequestHandler): Api {
  const { rules, handle, direct = {}, own, refused, credential } = handler;
  const { access, clock } = options;
  const bodies: BodyLimits = {
    bytesMax: options.bodyBytesMax ?? BODY_BYTES_MAX,
    timeoutMs: options.bodyTimeoutMs ?? BODY_TIMEOUT_MS,
    budget: new BodyBudget(options.bodyBudgetBytes ?? BODY_BUDGET_BYTES, clock),
    clock,
  };
  const refusals = new Refusals(clock, options.onRefused ?? (() => undefined));
  const onRefused = (code: ApiRefusal, address: string) => refusals.add(code, address);
  const cors = new Cors(options.corsOrigins ?? []);
  const authorize = createAuthorization({
    access,
    rules,
    hosts: options.hosts ?? [],
    onRefused,
    ...(credential === undefined ? {} : { credential }),
    isOwnOrigin: (origin) => cors.allows(origin),
  });
  const sources = new NamedSources(ADDRESSES_MAX);
  const answerTo = async (request: Request, connection: ClientConnection, source: TurnSource) => {
    const caller = authorize(request, connection.address, connection.caller);
    if (caller instanceof Response) {
      return refused === undefined ? caller : refused(caller, request);
    }
    if (own !== undefined) return own(request, () => connection.onBody?.());
    using share = bodies.budget.open();
    const body = await readBody(request, bodies, share);
    if (typeof body === "string") {
      if (body === "crowded") onRefused("BODY_LIMIT", connection.address);
      if (body === "late") onRefused("BODY_TIMEOUT", connection.address);
      return refuseBody(body, bodies);
    }
    connection.onBody?.();
    const answer = () => {
      const shortcut = direct[`${request.method} ${pathOf(request.url)}`];
      if (shortcut !== undefined) return shortcut(body, request.signal);
      return handle(withBody(request, body), caller, source);
    };
    // Reading the body used up this slice, so the request waits for another one; other callers may
    // run first.
    return await (body.length === 0 ? answer() : (source.call(answer) ?? refuseWaiting()));
  };
  const fetch: Api["fetch"] = async (request, connection = { address: "local" }) => {
    const source = sources.of(connection.address);
    const answer = async () =>
      cors.preflight(request) ?? cors.mark(request, await answerTo(request, connection, source));
    return source.call(answer) ?? refuseWaiting();
  };
  return {
    fetch,
    refusals: () => refusals.counts(),
    listen({ host = "127.0.0.1", port }) {
      if (!needsCredentials(access) && !LOOPBACK_ADDRESS.test(host)) {
        const what = `${host} is reachable from other machines and no token is configured`;
        throw new HearthError("CONFIG_INVALID", what, {
          fix: "set api.token_file, api.tokens_file or api.tls_client_ca_file",
        });
      }
      return serve(options, { host, port }, { fetch, rules, bodies, onRefused });
    },
  };
}

interface Served {
  readonly fetch: Api["fetch"];
  readonly rules: RouteRules;
  readonly bodies: BodyLimits;
  readonly onRefused: (code: ApiRefusal, address: string) => void;
}

/** Returns the same request with its whole body in memory. */
function withBody(request: Request, body: Uint8Array<ArrayBuffer>): Request {
  const { method, headers } = request;
  const hasNone = body.length === 0 && !request.bodyUsed;
  if (hasNone || method === "GET" || method === "HEAD") return withLongHost(request);
  return new Request(longUrl(request.url), { method, headers, body });
}

/**
 * Returns a URL with a host that is long enough: the framework searches for the path from the
 * twelfth character on, which fails if the host is short.
 */
function longUrl(url: string): string {
  const slash = url.indexOf("/", 8);
  return slash >= 11 ? url : `http://localhost${url.slice(slash)}`;
}

function withLongHost(request: Request): Request {
  const url = longUrl(request.url);
  return url === request.url ? request : new Request(url, request);
}

function serve(
  options: Omit<ApiOptions, "version">,
  { host, port }: Required<ListenOptions>,
  { fetch, rules, bodies, onRefused }: Served,
): ApiServer {
  const { clock, onFault, native, access } = options;
  const { connectionsMax = CONNECTIONS_MAX, backlog = BACKLOG, stopMs = STOP_MS } = options;
  const { tls } = access;
  const server = bind(host, port, () =>
    Bun.serve({
      hostname: host,
      port,
      fetch(request, server) {
        loopTurns.touch();
        const address = server.requestIP(request)?.address ?? "unknown";
        if (server.pendingRequests > connectionsMax) {
          onRefused("CONNECTION_LIMIT", address);
          return refuseConnection(connectionsMax);
        }
        // Time limits apply only until the body has arrived: requests that change blocks may wait
        // for the disk without a limit.
        const onBody = () => {
          const isChange = rules.changes(request.method, pathOf(request.url));
          if (isChange) server.timeout(request, 0);
        };
        return fetch(request, { address, onBody });
      },
      ...(tls === null ? {} : { tls: tlsOptions(tls) }),
      // Set explicitly, because the runtime shares the port with other processes by default, except
      // in its development mode.
      reusePort: false,
      idleTimeout: options.idleSeconds ?? IDLE_SECONDS,
      maxRequestBodySize: bodies.bytesMax + EXPLAINED_BYTES,
      development: false,
      error(thrown) {
        onFault("", thrown);
        return problemOf(thrown);
      },
    }),
  );
  native?.tuneListener(server.port ?? port, backlog, RECEIVE_BYTES);
  const cap =
    native === undefined ? null : new ConnectionCap({ server, native, clock, max: connectionsMax });
  const bound = server.port ?? port;
  const shown = host.includes(":") ? `[${host}]` : host;
  return {
    host,
    port: bound,
    url: `${tls === null ? "http" : "https"}://${shown}:${bound}`,
    async [Symbol.asyncDispose]() {
      cap?.[Symbol.dispose]();
      const finished = server.stop();
      const deadline = clock.after(stopMs, () => void server.stop(true));
      await finished;
      deadline[Symbol.dispose]();
    },
  };
}

const BACKLOG = 512;
/** Bytes of the receive buffer per connection. A hundred full ones are read in under 5 ms. */
const RECEIVE_BYTES = 2 ** 15;

function tlsOptions({ cert, key, clientCa }: ServerTls) {
  const own = { cert, key };
  if (clientCa === null) return own;
  return { ...own, ca: clientCa, requestCert: true, rejectUnauthorized: true };
}

function bind<T>(host: string, port: number, open: () => T): T {
  try {
    return open();
  } catch (cause) {
    const isTaken = (cause as NodeJS.ErrnoException).code === "EADDRINUSE";
    const what = `cannot listen on ${host}, port ${port}: ${messageOf(cause)}`;
    const fix = isTaken
      ? "stop the process that listens there, or change api.listen"
      : "set api.listen to an address of this machine and a port that this user may use";
    throw new HearthError(isTaken ? "SOCKET_IN_USE" : "CONFIG_INVALID", what, { cause, fix });
  }
}

const LOOK_MS = 50;
/** File descriptors examined per timer tick. */
const SLICE = 4_096;
/** If there are too many connections, one that has received no byte for this many ms is closed. */
const SILENT_MS = 250;

export interface ConnectionCapOptions {
  readonly server: Pick<Bun.Server<undefined>, "closeIdleConnections" | "port">;
  readonly native: Pick<Native, "endSilent">;
  readonly clock: Clock;
  /** Maximum connections of this server. */
  readonly max: number;
  /** Returns the file descriptors that this process uses. Tests replace it. */
  readonly use?: typeof descriptorUse;
}

/**
 * Closes idle connections of a server if it has too many, or if the process has almost no free file
 * descriptors. This class queries the kernel, because the runtime accepts every connection, does
 * not report those without a request, and closes them only after 10 s. Closes connections that have
 * sent no byte first, then connections between two requests.
 */
export class ConnectionCap implements Disposable {
  readonly #options: ConnectionCapOptions;
  readonly #timer: Disposable;
  /** File descriptor at which the next tick continues the sweep. 0: no sweep is in progress. */
  #at = 0;
  /** Number of connections found in this sweep. */
  #seen = 0;

  constructor(options: ConnectionCapOptions) {
    this.#options = options;
    this.#timer = options.clock.every(LOOK_MS, () => this.#look());
  }

  #look(): void {
    const { server, native, max, use = descriptorUse } = this.#options;
    const now = use();
    if (now === null || server.port === undefined) return;
    // Usually the process has fewer descriptors than the limit on connections, so no sweep is
    // needed.
    if (this.#at === 0 && now.open <= max && !now.isShort) return;
    this.#seen += native.endSilent(server.port, this.#at, SLICE, SILENT_MS);
    this.#at += SLICE;
    // The kernel always assigns the lowest free descriptor, so much higher numbers than the number
    // in use are not assigned.
    if (this.#at < Math.min(now.limit, 2 * now.open)) return;
    if (this.#seen > max || now.isShort) server.closeIdleConnections();
    [this.#at, this.#seen] = [0, 0];
  }

  [Symbol.dispose](): void {
    this.#timer[Symbol.dispose]();
  }
}

/**
 * Returns the response for an address that already has too many requests waiting for event-loop
 * slices.
 */
function refuseWaiting(): Response {
  return refuse("CONNECTION_LIMIT", "too many requests from this address are waiting", {
    fix: "retry later",
    headers: { connection: "close", "retry-after": "1" },
  });
}

/** Returns the response if the maximum number of connections have a request in progress. */
function refuseConnection(max: number): Response {
  return refuse("CONNECTION_LIMIT", `${max} requests are in flight on as many connections`, {
    fix: "retry later, or raise connections_max of this server",
    headers: { connection: "close", "retry-after": "1" },
  });
}

/** Seconds for which browsers cache the response to a preflight request. */
const MAX_AGE_SECONDS = 600;
const METHODS = "GET, POST, OPTIONS";
/** Response headers that pages may read, in addition to those that browsers always allow. */
const EXPOSED = "x-hearth-request-id, x-hearth-worker, x-request-id, retry-after";

/** Adds headers (CORS) to responses that allow web pages of other origins to use the server. */
class Cors {
  readonly #origins: ReadonlySet<string>;

  /** `*` allows every origin. If there are no origins, responses stay unchanged. */
  constructor(origins: readonly string[]) {
    this.#origins = new Set(origins);
  }

  allows(origin: string): boolean {
    return this.#origins.has("*") || this.#origins.has(origin);
  }

  /**
   * Returns the response to a preflight request, which carries no credentials. Null if the request
   * is not a preflight.
   */
  preflight({ method, headers }: Request): Response | null {
    const origin = headers.get("origin");
    const wanted = headers.get("access-control-request-method");
    if (method !== "OPTIONS" || origin === null || wanted === null) return null;
    if (!this.allows(origin)) return null;
    const answer = new Headers({
      "access-control-allow-methods": METHODS,
      "access-control-max-age": String(MAX_AGE_SECONDS),
    });
    // Allows all headers that the page asks for, because engines accept many.
    const asked = headers.get("access-control-request-headers");
    if (asked !== null) answer.set("access-control-allow-headers", asked);
    return this.#marked(origin, new Response(null, { status: 204, headers: answer }));
  }

  /** Adds the headers that allow the page to read the response. */
  mark({ headers }: Request, answer: Response): Response {
    const origin = headers.get("origin");
    if (origin === null || !this.allows(origin)) return answer;
    answer.headers.set("access-control-expose-headers", EXPOSED);
    return this.#marked(origin, answer);
  }

  #marked(origin: string, answer: Response): Response {
    // Replaces this header if the worker's response has it, because browsers reject a response with
    // two.
    answer.headers.set("access-control-allow-origin", origin);
    answer.headers.append("vary", "Origin");
    return answer;
  }
}

/** Callers that were refused for one reason, for the log. */
export interface RefusalNote {
  readonly code: ApiRefusal;
  /** Address of the latest refused caller. */
  readonly address: string;
  /** Number of refused callers since the previous note, including the latest. */
  readonly count: number;
}

/** Minimum ms between two notes of one reason, so that guessing tokens does not fill the log. */
const NOTE_EVERY_MS = 60_000;

/** Counts refused callers by reason and reports each reason at most once a minute. */
class Refusals {
  readonly #clock: Clock;
  readonly #report: (note: RefusalNote) => void;
  readonly #counts = new Map<ApiRefusal, number>(API_REFUSALS.map((code) => [code, 0]));
  readonly #reported = new Map<ApiRefusal, { readonly atMs: number; readonly count: number }>();

  constructor(clock: Clock, report: (note: RefusalNote) => void) {
    this.#clock = clock;
    this.#report = report;
  }

  add(code: ApiRefusal, address: string): void {
    const count = this.#counts.get(code)! + 1;
    this.#counts.set(code, count);
    const nowMs = this.#clock.monotonicMs();
    const reported = this.#reported.get(code);
    if (reported !== undefined && nowMs - reported.atMs < NOTE_EVERY_MS) return;
    this.#reported.set(code, { atMs: nowMs, count });
    this.#report({ code, address, count: count - (reported?.count ?? 0) });
  }

  /** Returns the number of refused callers since the start, by reason. */
  counts(): ReadonlyMap<ApiRefusal, number> {
    return this.#counts;
  }
}
