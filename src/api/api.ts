import { type Clock, HearthError, messageOf } from "../core/index.ts";
import { createGate } from "./gate.ts";
import { problemOf } from "./problem.ts";
import { createRoutes } from "./routes.ts";
import type { ApiServices } from "./services.ts";

export interface ApiOptions {
  readonly version: string;
  readonly clock: Clock;
  /** See `readTokenFile`; null: whoever reaches the server may use it. */
  readonly token: string | null;
  /** Names other than loopback's under which the server may be spoken to without a token. */
  readonly hosts?: readonly string[];
  /** What is longer is answered 413 before it is read. 1 MiB unless given. */
  readonly bodyBytesMax?: number;
  /** Told of faults of our own, with the path of the request that met them. */
  readonly onFault: (path: string, thrown: unknown) => void;
}

export interface ListenOptions {
  /** An address or a name; `127.0.0.1` unless given. */
  readonly host?: string;
  /** 0 takes a free one. */
  readonly port: number;
}

/** A listening server. Disposing lets answers under way finish, for a second at most. */
export interface ApiServer extends AsyncDisposable {
  readonly host: string;
  /** The port it really has. */
  readonly port: number;
  /** `http://127.0.0.1:7171`, without a path. */
  readonly url: string;
}

export interface Api {
  /** Answers a request as the server would. */
  fetch(request: Request): Promise<Response>;
  /** Throws SOCKET_IN_USE where the address is taken, CONFIG_INVALID where it cannot be had. */
  listen(options: ListenOptions): ApiServer;
}

const BODY_BYTES_MAX = 1024 * 1024;
const IDLE_SECONDS = 30;
const STOP_MS = 1_000;
const LOOPBACK_ADDRESS = /^(?:localhost|127(?:\.\d{1,3}){3}|::1)$/;

export function createApi(services: ApiServices, options: ApiOptions): Api {
  const { version, token, onFault, clock } = options;
  const bodyBytesMax = options.bodyBytesMax ?? BODY_BYTES_MAX;
  const routes = createRoutes(services, { version, hasToken: token !== null, onFault });
  const gate = createGate({ token, hosts: options.hosts ?? [] });
  const fetch = async (request: Request) =>
    gate(request) ?? (await routes.handle(withLongHost(request)));
  return {
    fetch,
    listen({ host = "127.0.0.1", port }) {
      if (token === null && !LOOPBACK_ADDRESS.test(host)) {
        const what = `${host} can be reached from other machines and there is no token`;
        throw new HearthError("CONFIG_INVALID", what, { fix: "set api.token_file" });
      }
      return serve({ fetch, host, port, bodyBytesMax, clock, onFault });
    },
  };
}

interface ServeOptions {
  readonly fetch: Api["fetch"];
  readonly host: string;
  readonly port: number;
  readonly bodyBytesMax: number;
  readonly clock: Clock;
  readonly onFault: ApiOptions["onFault"];
}

/**
 * The router looks for the path behind the eleventh character, which a short host has pushed there.
 */
function withLongHost(request: Request): Request {
  const { url } = request;
  const slash = url.indexOf("/", 8);
  return slash >= 11 ? request : new Request(`http://localhost${url.slice(slash)}`, request);
}

function serve({ fetch, host, port, bodyBytesMax, clock, onFault }: ServeOptions): ApiServer {
  const server = bind(host, port, () =>
    Bun.serve({
      hostname: host,
      port,
      fetch(request, server) {
        // What changes blocks waits for the disk, however long that takes.
        if (request.method === "POST") server.timeout(request, 0);
        return fetch(request);
      },
      // Outside of its development mode the runtime would share the port with other processes.
      reusePort: false,
      idleTimeout: IDLE_SECONDS,
      maxRequestBodySize: bodyBytesMax,
      development: false,
      error(thrown) {
        onFault("", thrown);
        return problemOf(thrown);
      },
    }),
  );
  const bound = server.port ?? port;
  const shown = host.includes(":") ? `[${host}]` : host;
  return {
    host,
    port: bound,
    url: `http://${shown}:${bound}`,
    async [Symbol.asyncDispose]() {
      const finished = server.stop();
      const deadline = clock.after(STOP_MS, () => void server.stop(true));
      await finished;
      deadline[Symbol.dispose]();
    },
  };
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
