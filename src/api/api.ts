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
  /** Host names, besides loopback's, accepted in requests without credentials. */
  readonly hosts?: readonly string[];
  /** Maximum body size in bytes; longer bodies are answered 413. Default: 1 MiB. */
  readonly bodyBytesMax?: number;
  /** Origins whose pages may use the API from a browser. Default: none. */
  readonly corsOrigins?: readonly string[];
  /** Maximum bytes of all bodies together. Default: 64 MiB. */
  readonly bodyBudgetBytes?: number;
  /** Time from the head of a request to the last byte of its body. Default: 10 s. */
  readonly bodyTimeoutMs?: number;
  /**
   * Maximum connections. Beyond it, idle ones are closed and requests are refused. Default: 1,024.
   */
  readonly connectionsMax?: number;
  /**
   * Connections that wait for `accept` at most; the runtime accepts all of them in one turn of the
   * event loop, about 13 µs each. Connections beyond it are retried by their kernel after a second.
   * Default: 512, the runtime's.
   */
  readonly backlog?: number;
  /** Finds idle connections and limits the listener. Without it none are closed. */
  readonly native?: Pick<Native, "endSilent" | "tuneListener">;
  /** Whether GET /flush_cache empties the cache, as on SGLang's server. Default: false. */
  readonly flushByGet?: boolean;
  /** A connection without traffic is closed after this time. Default: 30 s. */
  readonly idleSeconds?: number;
  /** Time for answers in flight to finish when the server is disposed. Default: 1 s. */
  readonly stopMs?: number;
  /** Called with internal faults and the path of the request. */
  readonly onFault: (path: string, thrown: unknown) => void;
  /** Called for refused callers, at most once a minute for each reason. */
  readonly onRefused?: (note: RefusalNote) => void;
}

export interface ListenOptions {
  /** Address or host name. Default: `127.0.0.1`. */
  readonly host?: string;
  /** 0: any free port. */
  readonly port: number;
}

/** A listening server. Disposing it waits for answers in flight, for at most `stopMs`. */
export interface ApiServer extends AsyncDisposable {
  readonly host: string;
  /** The actual port. */
  readonly port: number;
  /** Base URL without a path: `http://127.0.0.1:7171`, or `https:`. */
  readonly url: string;
}

/** The connection that a request came on. */
export interface ClientConnection {
  readonly address: string;
  /** The caller, if the connection identifies it. Absent: the request's credentials do. */
  readonly caller?: Caller;
  /** Called once the whole body has arrived. The answer may take any time from here on. */
  readonly onBody?: () => void;
}

export interface Api {
  /** Answers a request as the server would. */
  fetch(request: Request, connection?: ClientConnection): Promise<Response>;
  /**
   * Listens. Throws SOCKET_IN_USE if the address is taken, CONFIG_INVALID if it is not available.
   */
  listen(options: ListenOptions): ApiServer;
  /** Refused callers by reason, since the start. */
  refusals(): ReadonlyMap<ApiRefusal, number>;
}

const BODY_BYTES_MAX = 1024 * 1024;
const BODY_BUDGET_BYTES = 64 * 1024 * 1024;
const BODY_TIMEOUT_MS = 10_000;
const CONNECTIONS_MAX = 1_024;
/**
 * The runtime answers longer bodies without a reason. A body up to this much over the limit, such
 * as a full command of blocks in hex, gets an answer with the reason; at most `bodyBytesMax` of it
 * is kept.
 */
const EXPLAINED_BYTES = 8 * 1024 * 1024;
const IDLE_SECONDS = 30;
const STOP_MS = 1_000;
/** Addresses that get event loop slices of their own. All others share slices. */
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
 * A handler behind authorization and limits. It receives permitted requests with their whole body.
 */
export interface RequestHandler {
  readonly rules: RouteRules;
  /** Handles a request in the event loop slices of the caller's `source`. */
  handle(request: Request, caller: Caller, source: TurnSource): Promise<Response>;
  /**
   * Handlers of hot routes by method and path, which bypass the framework. They get the body, and a
   * signal that fires if the caller disconnects. Must not reject.
   */
  readonly direct?: Readonly<Record<string, Direct>>;
  /** Replaces both: gets the server's own request with its body unread. Must not reject. */
  readonly own?: (request: Request, onBody: () => void) => Promise<Response>;
  /** Builds the answer to a refused caller, if it must not be a problem document. */
  readonly refused?: (problem: Response, request: Request) => Promise<Response>;
  /** Extracts the caller's token. Default: the bearer of `Authorization`. */
  readonly credential?: (headers: Headers) => string | null;
}

type Direct = (body: Uint8Array, signal: AbortSignal) => Promise<Response>;

/** Wraps a handler in a server with authorization, limits and TLS. */
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
    // Reading the body used up this slice; other callers may go first.
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

/** The same request with its whole body in memory. */
function withBody(request: Request, body: Uint8Array<ArrayBuffer>): Request {
  const { method, headers } = request;
  const hasNone = body.length === 0 && !request.bodyUsed;
  if (hasNone || method === "GET" || method === "HEAD") return withLongHost(request);
  return new Request(longUrl(request.url), { method, headers, body });
}

/** The framework looks for the path after the eleventh character, which fails with a short host. */
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
        // Requests that change blocks may wait for the disk indefinitely. Their bodies must still
        // arrive in time.
        const onBody = () => {
          const isChange = rules.changes(request.method, pathOf(request.url));
          if (isChange) server.timeout(request, 0);
        };
        return fetch(request, { address, onBody });
      },
      ...(tls === null ? {} : { tls: tlsOptions(tls) }),
      // Outside its development mode the runtime would share the port with other processes.
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
/** Receive buffer per connection: a hundred full ones are read in under 5 ms. */
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
/** Descriptors examined per timer tick. */
const SLICE = 4_096;
/** A connection that has sent no byte for this long is closed if there are too many connections. */
const SILENT_MS = 250;

export interface ConnectionCapOptions {
  readonly server: Pick<Bun.Server<undefined>, "closeIdleConnections" | "port">;
  readonly native: Pick<Native, "endSilent">;
  readonly clock: Clock;
  /** Maximum connections of this server. */
  readonly max: number;
  /** Descriptor usage of this process. Tests replace it. */
  readonly use?: typeof descriptorUse;
}

/**
 * Closes idle connections of a server if it has too many, or if the process runs out of
 * descriptors. The runtime accepts every connection, does not report those without a request, and
 * closes them only after 10 s. The cap therefore queries the kernel. It closes connections that
 * have sent no byte first, then connections between two requests.
 */
export class ConnectionCap implements Disposable {
  readonly #options: ConnectionCapOptions;
  readonly #timer: Disposable;
  /** Descriptor at which the next tick continues. 0: between two sweeps. */
  #at = 0;
  /** Connections counted in this sweep. */
  #seen = 0;

  constructor(options: ConnectionCapOptions) {
    this.#options = options;
    this.#timer = options.clock.every(LOOK_MS, () => this.#look());
  }

  #look(): void {
    const { server, native, max, use = descriptorUse } = this.#options;
    const now = use();
    if (now === null || server.port === undefined) return;
    // A cheap test covers the usual case: fewer descriptors than the limit.
    if (this.#at === 0 && now.open <= max && !now.isShort) return;
    this.#seen += native.endSilent(server.port, this.#at, SLICE, SILENT_MS);
    this.#at += SLICE;
    // The kernel assigns the lowest free descriptor, so higher numbers are unused.
    if (this.#at < Math.min(now.limit, 2 * now.open)) return;
    if (this.#seen > max || now.isShort) server.closeIdleConnections();
    [this.#at, this.#seen] = [0, 0];
  }

  [Symbol.dispose](): void {
    this.#timer[Symbol.dispose]();
  }
}

/** The answer if an address has too many requests waiting for event loop slices. */
function refuseWaiting(): Response {
  return refuse("CONNECTION_LIMIT", "too many requests from this address are waiting", {
    fix: "retry later",
    headers: { connection: "close", "retry-after": "1" },
  });
}

/** The answer if every allowed connection already has a request in flight. */
function refuseConnection(max: number): Response {
  return refuse("CONNECTION_LIMIT", `${max} requests are in flight on as many connections`, {
    fix: "retry later, or raise connections_max of this server",
    headers: { connection: "close", "retry-after": "1" },
  });
}

/** Time for which browsers cache the preflight answer, in seconds. */
const MAX_AGE_SECONDS = 600;
const METHODS = "GET, POST, OPTIONS";
/** Headers that pages may read, in addition to the default ones. */
const EXPOSED = "x-hearth-request-id, x-hearth-worker, x-request-id, retry-after";

/** Cross-origin access to a server from browsers. */
class Cors {
  readonly #origins: ReadonlySet<string>;

  /** `*` allows every origin. Without origins, answers are unchanged. */
  constructor(origins: readonly string[]) {
    this.#origins = new Set(origins);
  }

  allows(origin: string): boolean {
    return this.#origins.has("*") || this.#origins.has(origin);
  }

  /** Answers a preflight request, which carries no credentials. Null: this is none. */
  preflight({ method, headers }: Request): Response | null {
    const origin = headers.get("origin");
    const wanted = headers.get("access-control-request-method");
    if (method !== "OPTIONS" || origin === null || wanted === null) return null;
    if (!this.allows(origin)) return null;
    const answer = new Headers({
      "access-control-allow-methods": METHODS,
      "access-control-max-age": String(MAX_AGE_SECONDS),
    });
    // Allows all headers that the page asks for, since engines accept many.
    const asked = headers.get("access-control-request-headers");
    if (asked !== null) answer.set("access-control-allow-headers", asked);
    return this.#marked(origin, new Response(null, { status: 204, headers: answer }));
  }

  /** Allows the page to read the answer. */
  mark({ headers }: Request, answer: Response): Response {
    const origin = headers.get("origin");
    if (origin === null || !this.allows(origin)) return answer;
    answer.headers.set("access-control-expose-headers", EXPOSED);
    return this.#marked(origin, answer);
  }

  #marked(origin: string, answer: Response): Response {
    // Replaces the worker's own header: browsers reject an answer that has it twice.
    answer.headers.set("access-control-allow-origin", origin);
    answer.headers.append("vary", "Origin");
    return answer;
  }
}

/** Refused callers of one reason. */
export interface RefusalNote {
  readonly code: ApiRefusal;
  /** Address of the latest one. */
  readonly address: string;
  /** Callers since the previous note, including this one. */
  readonly count: number;
}

/** Minimum time between two notes of one reason, so that token guessing does not fill the log. */
const NOTE_EVERY_MS = 60_000;

/** Counts refused callers and reports each reason at most once a minute. */
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

  /** Counts since the start. */
  counts(): ReadonlyMap<ApiRefusal, number> {
    return this.#counts;
  }
}
