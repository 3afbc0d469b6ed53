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

/** Names that a `Connection` header adds to those. */
function named(connection: string | null | undefined): ReadonlySet<string> {
  const names = (connection ?? "").toLowerCase().split(",");
  return new Set(names.map((name) => name.trim()).filter((name) => name !== ""));
}

export type HeaderPairs = [name: string, value: string][];

/** What a worker is sent of a client's headers. Lengths and host are those of the new request. */
export function towardsWorker(
  headers: Headers,
  authorization: "pass" | "drop" | { readonly value: string },
): Map<string, string> {
  const more = named(headers.get("connection"));
  const sent = new Map<string, string>();
  for (const [name, value] of headers) {
    if (OF_CONNECTION.has(name) || more.has(name)) continue;
    if (name === "host" || name === "content-length" || name === "expect") continue;
    sent.set(name, value);
  }
  if (authorization === "drop") sent.delete("authorization");
  else if (authorization !== "pass") sent.set("authorization", authorization.value);
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
