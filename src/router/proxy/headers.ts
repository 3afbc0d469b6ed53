/** Headers that apply to one connection only (RFC 9110, 7.6.1). They are not forwarded. */
const OF_CONNECTION: ReadonlySet<string> = new Set([
  "connection",
  "keep-alive",
  "proxy-authenticate",
  "proxy-authorization",
  "proxy-connection",
  "te",
  "trailer",
  "transfer-encoding",
  "upgrade",
]);

/** Headers that the proxy sets itself for the request to the worker. */
const OF_REQUEST: ReadonlySet<string> = new Set(["host", "content-length", "expect"]);

/** Matches a header name: a token of RFC 9110, 5.6.2. */
const NAME = /^[!#$%&'*+\-.^_`|~0-9A-Za-z]+$/;
/**
 * Matches characters that a header value must not contain (RFC 9110, 5.5), as in
 * `validateHeaderValue` of node:http.
 */
const NOT_IN_VALUE = /[^\t\x20-\x7e\x80-\xff]/;

/**
 * Returns the name of the first header that cannot be forwarded, or null. The runtime's server
 * accepts bytes that its client refuses to send, such as DEL.
 */
export function unsendableHeader(headers: Headers): string | null {
  for (const [name, value] of headers) {
    if (!NAME.test(name) || NOT_IN_VALUE.test(value)) return name;
  }
  return null;
}

/** Returns the header names listed in a `Connection` header. */
function named(connection: string | null | undefined): ReadonlySet<string> {
  const names = (connection ?? "").toLowerCase().split(",");
  return new Set(names.map((name) => name.trim()).filter((name) => name !== ""));
}

export type HeaderPairs = [name: string, value: string][];

export type Authorization = "pass" | "drop" | { readonly value: string };

/**
 * Returns the client's headers to forward to the worker. Omits length and host, which are set anew.
 */
export function towardsWorker(headers: Headers, authorization: Authorization): Map<string, string> {
  const more = named(headers.get("connection"));
  const sent = new Map<string, string>();
  for (const [name, value] of headers) {
    if (OF_CONNECTION.has(name) || more.has(name) || OF_REQUEST.has(name)) continue;
    sent.set(name, value);
  }
  if (authorization === "pass") return sent;
  sent.delete("authorization");
  sent.delete("x-api-key");
  if (authorization !== "drop") sent.set("authorization", authorization.value);
  return sent;
}

/**
 * Returns the headers of a request that the proxy makes for all clients. They contain no client's
 * credentials, because other clients see the answer.
 */
export function ownHeaders(authorization: Authorization): Map<string, string> {
  const sent = new Map([["accept", "application/json"]]);
  if (typeof authorization === "object") sent.set("authorization", authorization.value);
  return sent;
}

/** Returns the worker's headers to forward to the client: all except those of the connection. */
export function towardsClient(raw: HeaderPairs): HeaderPairs {
  const connection = raw.filter(([name]) => name.toLowerCase() === "connection");
  const more = named(connection.map(([, value]) => value).join(","));
  return raw.filter(([name]) => {
    const lower = name.toLowerCase();
    return !OF_CONNECTION.has(lower) && !more.has(lower);
  });
}
