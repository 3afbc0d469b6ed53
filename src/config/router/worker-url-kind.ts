import { type Kind, patternKind } from "../kinds.ts";
import { quoteText } from "../problems.ts";

const EXAMPLE = "http://10.0.0.2:8000";

/** A query or a fragment would put the paths of requests elsewhere. */
const shape = patternKind<string>({
  name: "URL",
  pattern: /^https?:\/\/[A-Za-z0-9.[\]:_-]{1,255}(?:\/[!"$->@-~]{0,1024})?$/,
  words: "http:// or https://, a host, a port and maybe a path, without ? and #",
  example: EXAMPLE,
});

/**
 * Addresses of one link alone, as `URL` writes them: cloud hosts serve their credentials there.
 * 169.254.0.0/16 also as IPv4 in IPv6, and fe80::/10.
 */
const LINK_LOCAL = /^(?:169\.254\.|\[::ffff:a9fe:|\[fe[89ab][0-9a-f]:)/;

/** The base of a worker's HTTP API. */
export const workerUrlKind: Kind<string> = {
  ...shape,
  read(raw) {
    const read = shape.read(raw);
    if (!read.ok) return read;
    const host = URL.parse(read.value)?.hostname;
    if (host !== undefined && !LINK_LOCAL.test(host)) return read;
    const what = `is ${quoteText(read.value)}, `;
    const instead = `write an address that other hosts route to, as in "${EXAMPLE}"`;
    if (host === undefined) return { ok: false, what: `${what}which is no URL`, instead };
    return { ok: false, what: `${what}a link-local address`, instead };
  },
};
