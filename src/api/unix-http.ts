import { STATUS_CODES } from "node:http";

/** The first part of a request, as `parseHead` reads it. */
export interface ParsedHead {
  readonly method: string;
  /** With its query. */
  readonly path: string;
  readonly headers: Headers;
  /** Of the request line and the headers, with the empty line behind them. */
  readonly headBytes: number;
  readonly bodyBytes: number;
  readonly expectsContinue: boolean;
}

const REQUEST_LINE = /^([A-Z]{1,16}) (\/[\x21-\x7e]*) HTTP\/1\.[01]$/;
const HEADER_LINE = /^([!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}):[ \t]*([\x20-\x7e\t]*)$/;
const LENGTH = /^[0-9]{1,15}$/;
const HEADERS_MAX = 64;

/**
 * Reads a request's head, all before the empty line. A string says what is wrong. Only bodies with
 * a length are taken: one way to say where a request ends cannot contradict another.
 */
export function parseHead(bytes: Uint8Array): ParsedHead | string {
  const [first = "", ...lines] = Buffer.from(bytes).toString("latin1").split("\r\n");
  const request = REQUEST_LINE.exec(first);
  if (request === null) return "the request line is not METHOD /PATH HTTP/1.1";
  if (lines.length > HEADERS_MAX) return `more than ${HEADERS_MAX} headers`;
  const headers = new Headers();
  for (const line of lines) {
    const match = HEADER_LINE.exec(line);
    if (match === null) return "a header is not NAME: VALUE in printable ASCII";
    headers.append(match[1]!, match[2]!.trimEnd());
  }
  if (headers.has("transfer-encoding")) return "send Content-Length, not Transfer-Encoding";
  const length = headers.get("content-length") ?? "0";
  // Two lengths come as one value with a comma.
  if (!LENGTH.test(length)) return "Content-Length is not one number";
  return {
    method: request[1]!,
    path: request[2]!,
    headers,
    headBytes: bytes.length + 4,
    bodyBytes: Number(length),
    expectsContinue: headers.get("expect")?.toLowerCase() === "100-continue",
  };
}

/** An answer as it goes over the wire; the connection closes behind it. */
export async function responseBytes(response: Response, method: string): Promise<Uint8Array> {
  const body = Buffer.from(await response.arrayBuffer());
  const lines = [`HTTP/1.1 ${response.status} ${STATUS_CODES[response.status] ?? "-"}`];
  response.headers.forEach((value, name) => {
    if (name !== "content-length" && name !== "connection") lines.push(`${name}: ${value}`);
  });
  lines.push(`content-length: ${body.length}`, "connection: close", "", "");
  const head = Buffer.from(lines.join("\r\n"), "latin1");
  return method === "HEAD" ? head : Buffer.concat([head, body]);
}
