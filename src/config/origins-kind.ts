import { type Kind, typeName } from "./kinds.ts";
import { quoteText } from "./problems.ts";

const ORIGINS_MAX = 256;
const INSTEAD = 'write origins with commas between them, as in "https://chat.example.org", or "*"';

/** Origins of web pages, or `*` for all of them; an empty text is none. */
export const originsKind: Kind<readonly string[]> = {
  name: "list of origins",
  range: 'http:// or https:// with a host and maybe a port, with commas between them; or "*"',
  read(raw) {
    if (typeof raw !== "string")
      return { ok: false, what: `is ${typeName(raw)}`, instead: INSTEAD };
    const names = raw.split(",").map((name) => name.trim());
    const given = names.filter((name) => name !== "");
    if (given.length > ORIGINS_MAX) {
      return { ok: false, what: `names more than ${ORIGINS_MAX} origins`, instead: INSTEAD };
    }
    const wrong = given.find((name) => name !== "*" && !isOrigin(name));
    if (wrong !== undefined) {
      return { ok: false, what: `names ${quoteText(wrong)}, which is no origin`, instead: INSTEAD };
    }
    return { ok: true, value: Object.freeze([...new Set(given)]) };
  },
  write: (origins) => origins.join(","),
};

/** Exactly as browsers send it: no path, no default port, lower case. */
function isOrigin(text: string): boolean {
  const url = URL.parse(text);
  return url !== null && /^https?:$/.test(url.protocol) && url.origin === text;
}
