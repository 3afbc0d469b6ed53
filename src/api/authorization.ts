import { mayDo, type Role, type RoleKey, roleFix, type Sender } from "../control/index.ts";
import { assert, type TurnSource } from "../core/index.ts";
import type { ApiRefusal } from "../observability/index.ts";
import type { ServerTls, Tokens } from "./access.ts";
import { refuse } from "./problem.ts";
import { pathOf, type RouteRules } from "./route-rules.ts";

/** Who may do what. */
export interface Access {
  /** Null: none is asked for. */
  readonly tokens: Tokens | null;
  /** Null: plain HTTP. */
  readonly tls: ServerTls | null;
  /** Of callers without credentials, where none are asked for. */
  readonly loopbackRole: Role;
  /** Of callers who show a certificate and no token. */
  readonly clientRole: Role;
}

/** Everybody who reaches the server may do everything: for loopback. */
export const OPEN_ACCESS: Access = {
  tokens: null,
  tls: null,
  loopbackRole: "purge",
  clientRole: "purge",
};

/** Who asks. */
export interface Caller {
  /** A token's name; `local` and `certificate` where there is none. */
  readonly name: string;
  /** Name and address, for the audit log. */
  readonly from: string;
  readonly role: Role;
  /** What gave it the role. */
  readonly roleKey: RoleKey;
  /** By its token, or by the kernel; null of a caller who is one of many. */
  readonly account: string | null;
}

export interface GateOptions {
  readonly access: Access;
  readonly rules: RouteRules;
  /** Host names, beside loopback's, under which the server may be spoken to. */
  readonly hosts: readonly string[];
  /** Where callers show their token; `Authorization` unless given. */
  readonly credential?: (headers: Headers) => string | null;
  /** Whether pages of another origin may use the server. */
  readonly isOwnOrigin?: (origin: string) => boolean;
  /** Told of each who is not let in. */
  readonly onRefused?: (code: ApiRefusal, address: string) => void;
}

const LOOPBACK = /^(?:localhost|127(?:\.\d{1,3}){3}|\[::1\])$/;

/** The host of a `Host` header without its port, lower case, without the final dot. */
function hostOf(header: string): string {
  return header.toLowerCase().replace(/:\d*$/, "").replace(/\.$/, "");
}

/** Whether callers must show a token or a certificate. */
export function needsCredentials({ tokens, tls }: Access): boolean {
  return tokens !== null || (tls !== null && tls.clientCa !== null);
}

/** `known`: the caller, if the connection says who it is; no browser sends such a request. */
export type Gate = (request: Request, address: string, known?: Caller) => Caller | Response;

/** Checks what holds for every request, whatever its path: lets the caller in, or answers. */
export function createGate(options: GateOptions): Gate {
  const { access, rules, hosts, onRefused = () => undefined } = options;
  const { credential = authorizationOf, isOwnOrigin = () => false } = options;
  const names = new Set(hosts.map((host) => hostOf(host)));
  const isGuarded = needsCredentials(access);
  return (request, address, known) => {
    const refusing = (code: ApiRefusal, answer: Response) => {
      onRefused(code, address);
      return answer;
    };
    // The runtime makes the address from the Host header, whatever that holds.
    const url = URL.parse(request.url);
    if (url === null) return refusing("HOST_REFUSED", refuseHost());
    if (!isGuarded && known === undefined) {
      // A page in a browser may have its own name point here (DNS rebinding): then the host is that
      // name. With a token there is nothing to check, since such a page does not have it; nor is
      // there with certificates, since the server's own does not bear that name.
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
  // The handshake has seen to the certificate.
  if (hasCertificate && (tokens === null || authorization === null)) {
    return callerOf("certificate", clientRole, "api.tls_client_role", address);
  }
  if (tokens === null) return callerOf("local", loopbackRole, "api.loopback_role", address);
  const holder = tokens.find(authorization);
  if (holder === null) return null;
  return callerOf(holder.name, holder.role, "api.tokens_file", address);
}

/**
 * Whether a browser sends it for a page of another site, which cannot read the answer but would
 * have made the change. Programs send none of these headers. Browsers without Fetch Metadata send
 * neither of the first two for an image; `Referer` remains.
 */
function isFromElsewhere({ headers }: Request, url: URL): boolean {
  const site = headers.get("sec-fetch-site");
  if (site !== null && site !== "same-origin" && site !== "none") return true;
  return [headers.get("origin"), headers.get("referer")].some(
    (from) => from !== null && URL.parse(from)?.host !== url.host,
  );
}

function refuseHost(): Response {
  return refuse("HOST_REFUSED", "the Host header names no address of this server", {
    fix: "use localhost or 127.0.0.1, or set api.token_file to be reached by name",
  });
}

function refuseOrigin(): Response {
  return refuse("ORIGIN_REFUSED", "a page of another site asks for a change", {
    fix: "ask from a program, or from a page that this server sent",
  });
}

function refuseToken({ tls }: Access): Response {
  const other = tls === null || tls.clientCa === null ? "" : ", or none at all";
  return refuse("UNAUTHORIZED", "the bearer token is missing or wrong", {
    fix:
      "send `Authorization: Bearer TOKEN` with the first line of api.token_file or a token of " +
      `api.tokens_file${other}`,
    headers: { "www-authenticate": 'Bearer realm="hearth"' },
  });
}

function refuseRole({ name, role, roleKey }: Caller, needed: Role): Response {
  return refuse("FORBIDDEN", `this needs the role ${needed}, and ${name} has ${role}`, {
    fix: roleFix(roleKey, needed),
  });
}

/** Who sent each request that was let in: the router hands nothing but the request on. */
export class Callers {
  readonly #callers = new WeakMap<
    Request,
    { readonly caller: Caller; readonly source: TurnSource }
  >();

  set(request: Request, caller: Caller, source: TurnSource): void {
    this.#callers.set(request, { caller, source });
  }

  /** In whose slices of the event loop its work is done. */
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
    assert(entry !== undefined, "a request passed the gate");
    return entry;
  }
}
