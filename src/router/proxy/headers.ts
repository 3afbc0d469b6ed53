/** Of one connection alone (RFC 9110, 7.6.1), or made anew for the next one. */
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

/** Of the request to the proxy, or made anew for the next one. */
const OF_REQUEST: ReadonlySet<string> = new Set(["host", "content-length", "expect"]);

/** A token of RFC 9110, 5.6.2. */
const NAME = /^[!#$%&'*+\-.^_`|~0-9A-Za-z]+$/;
/** Outside of a field value of RFC 9110, 5.5, as `validateHeaderValue` of node:http has it. */
const NOT_IN_VALUE = /[^\t\x20-\x7e\x80-\xff]/;

/**
 * The name of the first header that cannot be sent on; null: all of them can. The runtime's server
 * takes bytes that its client refuses to send, such as DEL.
 */
export function unsendableHeader(headers: Headers): string | null {
  for (const [name, value] of headers) {
    if (!NAME.test(name) || NOT_IN_VALUE.test(value)) return name;
  }
  return null;
}

/** Names that a `Connection` header adds to those. */
function named(connection: string | null | undefined): ReadonlySet<string> {
  const names = (connection ?? "").toLowerCase().split(",");
  return new Set(names.map((name) => name.trim()).filter((name) => name !== ""));
}

export type HeaderPairs = [name: string, value: string][];

export type Authorization = "pass" | "drop" | { readonly value: string };

/** What a worker is sent of a client's headers. Lengths and host are those of the new request. */
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
 * Headers of a question that the proxy asks a worker for all of its clients: none that shows who
 * asked first, since the answer is shown to others.
 */
export function ownHeaders(authorization: Authorization): Map<string, string> {
  const sent = new Map([["accept", "application/json"]]);
  if (typeof authorization === "object") sent.set("authorization", authorization.value);
  return sent;
}

/** What a client is sent of a worker's headers: all but what belongs to the connection. */
export function towardsClient(raw: HeaderPairs): HeaderPairs {
  const connection = raw.filter(([name]) => name.toLowerCase() === "connection");
  const more = named(connection.map(([, value]) => value).join(","));
  return raw.filter(([name]) => {
    const lower = name.toLowerCase();
    return !OF_CONNECTION.has(lower) && !more.has(lower);
  });
}
