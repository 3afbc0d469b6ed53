import { mayDo, type Role, type RoleKey, roleFix, type Sender } from "../control/index.ts";
import { assert, type TurnSource } from "../core/index.ts";
import type { ApiRefusal } from "../observability/index.ts";
import type { ServerTls, Tokens } from "./access.ts";
import { refuse } from "./problem.ts";
import { pathOf, type RouteRules } from "./route-rules.ts";

/** Access rules of a server. */
export interface Access {
  /** The valid tokens. Null: no tokens are required. */
  readonly tokens: Tokens | null;
  /** TLS certificate and key. Null: the server uses plain HTTP. */
  readonly tls: ServerTls | null;
  /** Role of callers without credentials, if the server requires none. */
  readonly loopbackRole: Role;
  /** Role of callers with a valid client certificate and without a token. */
  readonly clientRole: Role;
}

/** Gives every caller all roles. Only for servers on loopback addresses. */
export const OPEN_ACCESS: Access = {
  tokens: null,
  tls: null,
  loopbackRole: "purge",
  clientRole: "purge",
};

/** The authenticated sender of a request. */
export interface Caller {
  /** Name of the caller's token, or `local` or `certificate`. */
  readonly name: string;
  /** Name and address of the caller, for the audit log. */
  readonly from: string;
  readonly role: Role;
  /** The configuration key that assigned the role. */
  readonly roleKey: RoleKey;
  /** Account proven by a token or by the kernel. Null if several callers are indistinguishable. */
  readonly account: string | null;
}

export interface AuthorizationOptions {
  readonly access: Access;
  readonly rules: RouteRules;
  /** Host names, in addition to loopback names, that are accepted in `Host`. */
  readonly hosts: readonly string[];
  /** Returns the caller's token. Default: the bearer token of `Authorization`. */
  readonly credential?: (headers: Headers) => string | null;
  /** Returns true if web pages of this origin may use the server. */
  readonly isOwnOrigin?: (origin: string) => boolean;
  /** Called for each refused caller. */
  readonly onRefused?: (code: ApiRefusal, address: string) => void;
}

const LOOPBACK = /^(?:localhost|127(?:\.\d{1,3}){3}|\[::1\])$/;

/** Returns the host in a `Host` header, in lower case, without port and final dot. */
function hostOf(header: string): string {
  return header.toLowerCase().replace(/:\d*$/, "").replace(/\.$/, "");
}

/** Returns true if callers must send a token or a certificate. */
export function needsCredentials({ tokens, tls }: Access): boolean {
  return tokens !== null || (tls !== null && tls.clientCa !== null);
}

/**
 * Authorizes a request: returns its caller, or the response that refuses it. `known` is the caller
 * if the connection itself identifies it, which is never the case for a browser.
 */
export type Authorize = (request: Request, address: string, known?: Caller) => Caller | Response;

/** Creates the function that authorizes every request before its route runs. */
export function createAuthorization(options: AuthorizationOptions): Authorize {
  const { access, rules, hosts, onRefused = () => undefined } = options;
  const { credential = authorizationOf, isOwnOrigin = () => false } = options;
  const names = new Set(hosts.map((host) => hostOf(host)));
  const isGuarded = needsCredentials(access);
  return (request, address, known) => {
    const refusing = (code: ApiRefusal, answer: Response) => {
      onRefused(code, address);
      return answer;
    };
    // The runtime builds the URL from the Host header, which may be invalid.
    const url = URL.parse(request.url);
    if (url === null) return refusing("HOST_REFUSED", refuseHost());
    if (!isGuarded && known === undefined) {
      // Checks the Host header against DNS rebinding: a web page may point its own host name to
      // this server, and the header then contains that name. A server with tokens needs no check,
      // because the page has no token; a server with TLS needs none either, because its certificate
      // is not valid for that name.
      const host = hostOf(request.headers.get("host") ?? "");
      if (!LOOPBACK.test(host) && !names.has(host)) {
        return refusing("HOST_REFUSED", refuseHost());
      }
    }
    const path = pathOf(request.url);
    const needed = rules.roleOf(request.method, path);
    if (needed === "open") return callerOf("anybody", "read", "api.loopback_role", address);
    const caller = known ?? identify(access, credential(request.headers), address);
    if (caller === null) return refusing("UNAUTHORIZED", refuseToken(access));
    if (!mayDo(caller.role, needed)) {
      return refusing("FORBIDDEN", refuseRole(caller, needed));
    }
    const origin = request.headers.get("origin");
    const isAllowed = origin !== null && isOwnOrigin(origin);
    if (rules.changes(request.method, path) && !isAllowed && isFromElsewhere(request, url)) {
      return refusing("ORIGIN_REFUSED", refuseOrigin());
    }
    return caller;
  };
}

function authorizationOf(headers: Headers): string | null {
  return headers.get("authorization");
}

function callerOf(name: string, role: Role, roleKey: RoleKey, address: string): Caller {
  const account = roleKey === "api.tokens_file" ? name : null;
  return { name, role, roleKey, from: `${name} ${address}`, account };
}

function identify(access: Access, authorization: string | null, address: string): Caller | null {
  const { tokens, tls, loopbackRole, clientRole } = access;
  const hasCertificate = tls !== null && tls.clientCa !== null;
  // If there is a certificate, the TLS handshake has already verified it.
  if (hasCertificate && (tokens === null || authorization === null)) {
    return callerOf("certificate", clientRole, "api.tls_client_role", address);
  }
  if (tokens === null) return callerOf("local", loopbackRole, "api.loopback_role", address);
  const identity = tokens.find(authorization);
  if (identity === null) return null;
  return callerOf(identity.name, identity.role, "api.tokens_file", address);
}

/**
 * Returns true if a browser sends the request for a page of another site. The page could not read
 * the response, but the change would be made. Other programs send none of these headers. Browsers
 * without Fetch Metadata send only `Referer` with requests for images.
 */
function isFromElsewhere({ headers }: Request, url: URL): boolean {
  const site = headers.get("sec-fetch-site");
  if (site !== null && site !== "same-origin" && site !== "none") return true;
  return [headers.get("origin"), headers.get("referer")].some(
    (from) => from !== null && URL.parse(from)?.host !== url.host,
  );
}

function refuseHost(): Response {
  return refuse("HOST_REFUSED", "the Host header does not match an address of this server", {
    fix: "use localhost or 127.0.0.1, or set api.token_file to use another name",
  });
}

function refuseOrigin(): Response {
  return refuse("ORIGIN_REFUSED", "a page of another site requested a change", {
    fix: "use a program, or a page served by this server",
  });
}

function refuseToken({ tls }: Access): Response {
  const other = tls === null || tls.clientCa === null ? "" : ", or no token";
  return refuse("UNAUTHORIZED", "the bearer token is missing or invalid", {
    fix:
      "send `Authorization: Bearer TOKEN` with the first line of api.token_file or a token of " +
      `api.tokens_file${other}`,
    headers: { "www-authenticate": 'Bearer realm="hearth"' },
  });
}

function refuseRole({ name, role, roleKey }: Caller, needed: Role): Response {
  return refuse("FORBIDDEN", `this request requires the role ${needed}; ${name} has ${role}`, {
    fix: roleFix(roleKey, needed),
  });
}

/**
 * The callers of authorized requests. Needed because the framework passes only the request to
 * handlers.
 */
export class Callers {
  readonly #callers = new WeakMap<
    Request,
    { readonly caller: Caller; readonly source: TurnSource }
  >();

  set(request: Request, caller: Caller, source: TurnSource): void {
    this.#callers.set(request, { caller, source });
  }

  /** Returns the source in whose event-loop slices the request is handled. */
  sourceOf(request: Request): TurnSource {
    return this.#entryOf(request).source;
  }

  senderOf(request: Request): Sender {
    const { caller } = this.#entryOf(request);
    const { name, from, role, roleKey, account } = caller;
    const known = account === null ? {} : { account };
    return { via: "http", name, from, role, roleKey, ...known, broadcast: false };
  }

  #entryOf(request: Request) {
    const entry = this.#callers.get(request);
    assert(entry !== undefined, "the request was authorized");
    return entry;
  }
}
