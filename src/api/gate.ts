import { refuse } from "./problem.ts";
import { createTokenCheck } from "./token.ts";

export interface GateOptions {
  /** Bearer token every request must carry; null: none is asked for. */
  readonly token: string | null;
  /** Host names, beside loopback's, under which the server may be spoken to. */
  readonly hosts: readonly string[];
}

/** Probes of load balancers and service managers carry no token; these tell nothing but health. */
const OPEN_PATHS: ReadonlySet<string> = new Set(["/healthz", "/readyz"]);
const LOOPBACK = /^(?:localhost|127(?:\.\d{1,3}){3}|\[::1\])$/;

/** The host of a `Host` header without its port, lower case, without the final dot. */
function hostOf(header: string): string {
  return header.toLowerCase().replace(/:\d*$/, "").replace(/\.$/, "");
}

/** Checks what holds for every request, whatever its path. Null: let it pass. */
export function createGate(options: GateOptions): (request: Request) => Response | null {
  const { token } = options;
  const hosts = new Set(options.hosts.map((host) => hostOf(host)));
  const hasToken = token === null ? null : createTokenCheck(token);
  return (request) => {
    // The runtime makes the address from the Host header, whatever that holds.
    const url = URL.parse(request.url);
    if (url === null) return refuseHost();
    if (hasToken === null) {
      // A page in a browser may have its own name point here (DNS rebinding): then the host is that
      // name. With a token there is nothing to check, since such a page does not have it.
      const host = hostOf(request.headers.get("host") ?? "");
      if (!LOOPBACK.test(host) && !hosts.has(host)) return refuseHost();
    } else if (!OPEN_PATHS.has(url.pathname) && !hasToken(request.headers.get("authorization"))) {
      return refuseToken();
    }
    return null;
  };
}

function refuseHost(): Response {
  return refuse("HOST_REFUSED", "the Host header names no address of this server", {
    fix: "use localhost or 127.0.0.1, or set api.token_file to be reached by name",
  });
}

function refuseToken(): Response {
  return refuse("UNAUTHORIZED", "the bearer token is missing or wrong", {
    fix: "send `Authorization: Bearer TOKEN` with the first line of api.token_file",
    headers: { "www-authenticate": 'Bearer realm="hearth"' },
  });
}
