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
  createGate,
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
  /** Names other than loopback's under which it may be spoken to without credentials. */
  readonly hosts?: readonly string[];
  /** A longer body is answered 413; no byte beyond this is kept. Default: 1 MiB. */
  readonly bodyBytesMax?: number;
  /** Origins whose pages may use it from a browser; none unless given. */
  readonly corsOrigins?: readonly string[];
  /** Bytes of all bodies together. Default: 64 MiB. */
  readonly bodyBudgetBytes?: number;
  /** From the head of a request to the last byte of its body. Default: 10 s. */
  readonly bodyTimeoutMs?: number;
  /** Beyond this many connections idle ones are closed and requests are refused. Default: 1,024. */
  readonly connectionsMax?: number;
  /** Finds idle connections; without it none are closed. */
  readonly native?: Pick<Native, "endSilent">;
  /** Whether GET /flush_cache empties the cache, as SGLang's server has it. Default: false. */
  readonly flushByGet?: boolean;
  /** A connection on which nothing moves is closed after so long; 30 unless given. */
  readonly idleSeconds?: number;
  /** How long answers under way may take when it is disposed; a second unless given. */
  readonly stopMs?: number;
  /** Told of faults of our own, with the path of the request that met them. */
  readonly onFault: (path: string, thrown: unknown) => void;
  /** Told of callers who are not let in, of each kind at most once a minute. */
  readonly onRefused?: (note: RefusalNote) => void;
}

export interface ListenOptions {
  /** An address or a name; `127.0.0.1` unless given. */
  readonly host?: string;
  /** 0 takes a free one. */
  readonly port: number;
}

/** A listening server. Disposing lets answers under way finish, for `stopMs` at most. */
export interface ApiServer extends AsyncDisposable {
  readonly host: string;
  /** The port it really has. */
  readonly port: number;
  /** `http://127.0.0.1:7171`, or `https:`; without a path. */
  readonly url: string;
}

/** Where a request comes from. */
export interface Peer {
  readonly address: string;
  /** Who calls, where the connection says so; left out: the request's credentials do. */
  readonly caller?: Caller;
  /** Told once the whole body is there: what follows may take its time. */
  readonly onBody?: () => void;
}

export interface Api {
  /** Answers a request as the server would. */
  fetch(request: Request, peer?: Peer): Promise<Response>;
  /** Throws SOCKET_IN_USE where the address is taken, CONFIG_INVALID where it cannot be had. */
  listen(options: ListenOptions): ApiServer;
  /** Callers who were not let in, since the start. */
  refusals(): ReadonlyMap<ApiRefusal, number>;
}

const BODY_BYTES_MAX = 1024 * 1024;
const BODY_BUDGET_BYTES = 64 * 1024 * 1024;
const BODY_TIMEOUT_MS = 10_000;
const CONNECTIONS_MAX = 1_024;
/**
 * The runtime answers a body that announces more than this without a reason. A smaller one, such as
 * a full command of blocks in hex, gets an answer that says why; no more than `bodyBytesMax` of it
 * is kept.
 */
const EXPLAINED_BYTES = 8 * 1024 * 1024;
const IDLE_SECONDS = 30;
const STOP_MS = 1_000;
/** Addresses whose requests have slices of the event loop of their own; the others share them. */
const ADDRESSES_MAX = 8;
const LOOPBACK_ADDRESS = /^(?:localhost|127(?:\.\d{1,3}){3}|::1)$/;

export function createApi(services: ApiServices, options: ApiOptions): Api {
  const { version, access, onFault } = options;
  const callers = new Callers();
  const { flushByGet = false } = options;
  const routes = createRoutes(services, { version, access, callers, onFault, flushByGet });
  return createGuarded(options, {
    rules: AGENT_RULES,
    handle(request, caller, source) {
      callers.set(request, caller, source);
      return routes.handle(request);
    },
  });
}

/** What stands behind the gate: it gets requests whose caller may ask, with their whole body. */
export interface Guarded {
  readonly rules: RouteRules;
  /** Begins in a slice of `source`, which is the caller's. */
  handle(request: Request, caller: Caller, source: TurnSource): Promise<Response>;
  /**
   * By method and path: routes that are asked so often that they do without the framework. They
   * get the body, and a signal that fires when the caller is gone. Must not reject.
   */
  readonly direct?: Readonly<Record<string, Direct>>;
  /** Instead of both: whoever wants the server's own request, its body unread. Must not reject. */
  readonly own?: (request: Request, onBody: () => void) => Promise<Response>;
  /** Makes the answer to a caller who is not let in, where it is not to be a problem. */
  readonly refused?: (problem: Response, request: Request) => Promise<Response>;
  /** Where callers show their token; the bearer of `Authorization` unless given. */
  readonly credential?: (headers: Headers) => string | null;
}

type Direct = (body: Uint8Array, signal: AbortSignal) => Promise<Response>;

/** A server with gate, limits and TLS around whatever answers. */
export function createGuarded(options: Omit<ApiOptions, "version">, guarded: Guarded): Api {
  const { rules, handle, direct = {}, own, refused, credential } = guarded;
  const { access, onFault, clock } = options;
  const bodies: BodyLimits = {
    bytesMax: options.bodyBytesMax ?? BODY_BYTES_MAX,
    timeoutMs: options.bodyTimeoutMs ?? BODY_TIMEOUT_MS,
    budget: new BodyBudget(options.bodyBudgetBytes ?? BODY_BUDGET_BYTES, clock),
    clock,
  };
  const refusals = new Refusals(clock, options.onRefused ?? (() => undefined));
  const onRefused = (code: ApiRefusal, address: string) => refusals.add(code, address);
  const cors = new Cors(options.corsOrigins ?? []);
  const gate = createGate({
    ...{ access, rules, hosts: options.hosts ?? [], onRefused },
    ...(credential === undefined ? {} : { credential }),
    isOwnOrigin: (origin) => cors.allows(origin),
  });
  const sources = new NamedSources(ADDRESSES_MAX);
  const answerTo = async (request: Request, peer: Peer, source: TurnSource) => {
    const caller = gate(request, peer.address, peer.caller);
    if (caller instanceof Response) {
      return refused === undefined ? caller : refused(caller, request);
    }
    if (own !== undefined) return own(request, () => peer.onBody?.());
    using share = bodies.budget.open();
    const body = await readBody(request, bodies, share);
    if (typeof body === "string") {
      if (body === "crowded") onRefused("BODY_LIMIT", peer.address);
      if (body === "late") onRefused("BODY_TIMEOUT", peer.address);
      return refuseBody(body, bodies);
    }
    peer.onBody?.();
    const answer = () => {
      const shortcut = direct[`${request.method} ${pathOf(request.url)}`];
      if (shortcut !== undefined) return shortcut(body, request.signal);
      return handle(withBody(request, body), caller, source);
    };
    // A body came by turns that others may have used up.
    return await (body.length === 0 ? answer() : (source.call(answer) ?? refuseWaiting()));
  };
  const fetch: Api["fetch"] = async (request, peer = { address: "local" }) => {
    const source = sources.of(peer.address);
    const answer = async () =>
      cors.preflight(request) ?? cors.mark(request, await answerTo(request, peer, source));
    return source.call(answer) ?? refuseWaiting();
  };
  return {
    fetch,
    refusals: () => refusals.counts(),
    listen({ host = "127.0.0.1", port }) {
      if (!needsCredentials(access) && !LOOPBACK_ADDRESS.test(host)) {
        const what = `${host} can be reached from other machines and there is no token`;
        throw new HearthError("CONFIG_INVALID", what, {
          fix: "set api.token_file, api.tokens_file or api.tls_client_ca_file",
        });
      }
      const { idleSeconds = IDLE_SECONDS, stopMs = STOP_MS } = options;
      const { connectionsMax = CONNECTIONS_MAX } = options;
      const limits = { bodyBytesMax: bodies.bytesMax, idleSeconds, stopMs, connectionsMax };
      const parts = { fetch, rules, clock, onFault, onRefused, native: options.native ?? null };
      return serve({ ...parts, tls: access.tls, host, port, ...limits });
    },
  };
}

interface ServeOptions {
  readonly fetch: Api["fetch"];
  readonly rules: RouteRules;
  readonly host: string;
  readonly port: number;
  readonly bodyBytesMax: number;
  readonly idleSeconds: number;
  readonly stopMs: number;
  readonly connectionsMax: number;
  readonly native: Pick<Native, "endSilent"> | null;
  readonly clock: Clock;
  readonly onFault: ApiOptions["onFault"];
  readonly onRefused: (code: ApiRefusal, address: string) => void;
  readonly tls: ServerTls | null;
}

/** The same request with its whole body in memory. */
function withBody(request: Request, body: Uint8Array<ArrayBuffer>): Request {
  const { method, headers } = request;
  const hasNone = body.length === 0 && !request.bodyUsed;
  if (hasNone || method === "GET" || method === "HEAD") return withLongHost(request);
  return new Request(longUrl(request.url), { method, headers, body });
}

/**
 * The router looks for the path behind the eleventh character, which a short host has pushed there.
 */
function longUrl(url: string): string {
  const slash = url.indexOf("/", 8);
  return slash >= 11 ? url : `http://localhost${url.slice(slash)}`;
}

function withLongHost(request: Request): Request {
  const url = longUrl(request.url);
  return url === request.url ? request : new Request(url, request);
}

function serve(options: ServeOptions): ApiServer {
  const { fetch, rules, host, port, bodyBytesMax, idleSeconds, clock, onFault, tls } = options;
  const { connectionsMax, native, onRefused } = options;
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
        // What changes blocks waits for the disk, however long that takes; but a body must come.
        const onBody = () => {
          const isChange = rules.changes(request.method, pathOf(request.url));
          if (isChange) server.timeout(request, 0);
        };
        return fetch(request, { address, onBody });
      },
      ...(tls === null ? {} : { tls: tlsOptions(tls) }),
      // Outside of its development mode the runtime would share the port with other processes.
      reusePort: false,
      idleTimeout: idleSeconds,
      maxRequestBodySize: bodyBytesMax + EXPLAINED_BYTES,
      development: false,
      error(thrown) {
        onFault("", thrown);
        return problemOf(thrown);
      },
    }),
  );
  const cap = native && new ConnectionCap({ server, native, clock, max: connectionsMax });
  const bound = server.port ?? port;
  const shown = host.includes(":") ? `[${host}]` : host;
  return {
    host,
    port: bound,
    url: `${tls === null ? "http" : "https"}://${shown}:${bound}`,
    async [Symbol.asyncDispose]() {
      cap?.[Symbol.dispose]();
      const finished = server.stop();
      const deadline = clock.after(options.stopMs, () => void server.stop(true));
      await finished;
      deadline[Symbol.dispose]();
    },
  };
}

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
      ? "stop what listens there, or change api.listen"
      : "let api.listen name an address of this machine and a port this user may use";
    throw new HearthError(isTaken ? "SOCKET_IN_USE" : "CONFIG_INVALID", what, { cause, fix });
  }
}

const LOOK_MS = 50;
/** Descriptors looked at in one turn. */
const SLICE = 4_096;
/** A connection that has sent nothing for so long is ended while there are too many. */
const SILENT_MS = 250;

export interface ConnectionCapOptions {
  readonly server: Pick<Bun.Server<undefined>, "closeIdleConnections" | "port">;
  readonly native: Pick<Native, "endSilent">;
  readonly clock: Clock;
  /** Connections of this server. */
  readonly max: number;
  /** Descriptors of this process; another source for tests. */
  readonly use?: typeof descriptorUse;
}

/**
 * Closes a server's idle connections while it has too many, or while the process runs short of
 * descriptors. The runtime accepts every connection, reports none that has sent no request, and
 * closes those by itself only after 10 s, so the kernel is asked: a connection without a byte is
 * ended first. Where that leaves too many, connections between two requests are closed, too.
 */
export class ConnectionCap implements Disposable {
  readonly #options: ConnectionCapOptions;
  readonly #timer: Disposable;
  /** Where the next look begins; 0 between two sweeps over all descriptors. */
  #at = 0;
  /** Connections seen in this sweep. */
  #seen = 0;

  constructor(options: ConnectionCapOptions) {
    this.#options = options;
    this.#timer = options.clock.every(LOOK_MS, () => this.#look());
  }

  #look(): void {
    const { server, native, max, use = descriptorUse } = this.#options;
    const now = use();
    if (now === null || server.port === undefined) return;
    // Cheap, and the usual case: all descriptors together are fewer.
    if (this.#at === 0 && now.open <= max && !now.isShort) return;
    this.#seen += native.endSilent(server.port, this.#at, SLICE, SILENT_MS);
    this.#at += SLICE;
    // The kernel gives out the lowest number that is free.
    if (this.#at < Math.min(now.limit, 2 * now.open)) return;
    if (this.#seen > max || now.isShort) server.closeIdleConnections();
    [this.#at, this.#seen] = [0, 0];
  }

  [Symbol.dispose](): void {
    this.#timer[Symbol.dispose]();
  }
}

/** The answer to a request of an address whose earlier ones wait for their turns. */
function refuseWaiting(): Response {
  return refuse("CONNECTION_LIMIT", "too many requests of this address wait", {
    fix: "ask again later",
    headers: { connection: "close", "retry-after": "1" },
  });
}

/** The answer to a request where each of the connections allowed has one already. */
function refuseConnection(max: number): Response {
  return refuse("CONNECTION_LIMIT", `${max} requests are under way on as many connections`, {
    fix: "ask again later, or raise connections_max of this server",
    headers: { connection: "close", "retry-after": "1" },
  });
}

/** Browsers ask again after this time, in seconds. */
const MAX_AGE_SECONDS = 600;
const METHODS = "GET, POST, OPTIONS";
/** What pages may read of an answer, beside what they always may. */
const EXPOSED = "x-hearth-request-id, x-hearth-worker, x-request-id, retry-after";

/** Which pages of other origins may use a server from a browser. */
class Cors {
  readonly #origins: ReadonlySet<string>;

  /** `*` is every origin; without any, nothing is added to an answer. */
  constructor(origins: readonly string[]) {
    this.#origins = new Set(origins);
  }

  allows(origin: string): boolean {
    return this.#origins.has("*") || this.#origins.has(origin);
  }

  /** The answer to a browser that asks beforehand, without credentials; null: it does not ask. */
  preflight({ method, headers }: Request): Response | null {
    const origin = headers.get("origin");
    const wanted = headers.get("access-control-request-method");
    if (method !== "OPTIONS" || origin === null || wanted === null) return null;
    if (!this.allows(origin)) return null;
    const answer = new Headers({
      "access-control-allow-methods": METHODS,
      "access-control-max-age": String(MAX_AGE_SECONDS),
    });
    // Header names are those that the page asks for: engines take many.
    const asked = headers.get("access-control-request-headers");
    if (asked !== null) answer.set("access-control-allow-headers", asked);
    return this.#marked(origin, new Response(null, { status: 204, headers: answer }));
  }

  /** Lets the page read the answer. */
  mark({ headers }: Request, answer: Response): Response {
    const origin = headers.get("origin");
    if (origin === null || !this.allows(origin)) return answer;
    answer.headers.set("access-control-expose-headers", EXPOSED);
    return this.#marked(origin, answer);
  }

  #marked(origin: string, answer: Response): Response {
    // A worker may have said the same of itself; browsers refuse an answer that says it twice.
    answer.headers.set("access-control-allow-origin", origin);
    answer.headers.append("vary", "Origin");
    return answer;
  }
}

/** Callers of one kind who were not let in. */
export interface RefusalNote {
  readonly code: ApiRefusal;
  /** Of the last one. */
  readonly address: string;
  /** How many there were since the note before, this one included. */
  readonly count: number;
}

/** Between two notes of one kind: whoever tries tokens is not to fill the log. */
const NOTE_EVERY_MS = 60_000;

/** Counts who is not let in, and tells of it: of each kind at most once a minute. */
class Refusals {
  readonly #clock: Clock;
  readonly #tell: (note: RefusalNote) => void;
  readonly #counts = new Map<ApiRefusal, number>(API_REFUSALS.map((code) => [code, 0]));
  readonly #told = new Map<ApiRefusal, { readonly atMs: number; readonly count: number }>();

  constructor(clock: Clock, tell: (note: RefusalNote) => void) {
    this.#clock = clock;
    this.#tell = tell;
  }

  add(code: ApiRefusal, address: string): void {
    const count = this.#counts.get(code)! + 1;
    this.#counts.set(code, count);
    const nowMs = this.#clock.monotonicMs();
    const told = this.#told.get(code);
    if (told !== undefined && nowMs - told.atMs < NOTE_EVERY_MS) return;
    this.#told.set(code, { atMs: nowMs, count });
    this.#tell({ code, address, count: count - (told?.count ?? 0) });
  }

  /** Since the start. */
  counts(): ReadonlyMap<ApiRefusal, number> {
    return this.#counts;
  }
}
