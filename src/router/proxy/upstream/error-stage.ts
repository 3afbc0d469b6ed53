/** Codes of a connection that broke; every other error behind a request is one of the parser's. */
const BROKEN: ReadonlySet<string> = new Set([
  "ECONNRESET",
  "ECONNABORTED",
  "ECONNREFUSED",
  "EPIPE",
  "ETIMEDOUT",
  "ENOTCONN",
  "ConnectionClosed",
]);

/** What an error says of a worker that has the whole request. */
export function stageOfError({ code }: NodeJS.ErrnoException): "sent" | "garbled" {
  return code === undefined || BROKEN.has(code) ? "sent" : "garbled";
}
