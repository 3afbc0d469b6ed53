import { publicUserKey } from "../core/index.ts";
import { type Kind, type Read, typeName } from "./kinds.ts";
import { quoteText } from "./problems.ts";

/** An issuer of commands that has to prove its name. */
export interface ListedIssuer {
  readonly name: string;
  readonly role: "operate" | "purge";
  /** Its public nkey, `U...`; null: it publishes on a subject of its own. */
  readonly key: string | null;
}

const ISSUERS_MAX = 256;
const NAME = /^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$/;
const SUBJECT = "subject";
const INSTEAD =
  'write it as in "router-1 operate subject, ops purge UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJ' +
  'CPQTT2M7NLCNF4": a name, a role and how it is proved';

function refuse(what: string): { ok: false; what: string; instead: string } {
  return { ok: false, what, instead: INSTEAD };
}

function readIssuer(text: string): Read<ListedIssuer> {
  const words = text.split(/\s+/);
  const [name = "", role, proof = ""] = words;
  if (words.length !== 3) return refuse(`names ${quoteText(text)}, which is not three words`);
  if (!NAME.test(name)) return refuse(`names the issuer ${quoteText(name)}`);
  if (role !== "operate" && role !== "purge") {
    return refuse(`gives ${name} the role ${quoteText(role ?? "")}, not operate or purge`);
  }
  if (proof === SUBJECT) return { ok: true, value: Object.freeze({ name, role, key: null }) };
  if (publicUserKey(proof) !== null) {
    return { ok: true, value: Object.freeze({ name, role, key: proof }) };
  }
  return refuse(`gives ${name} neither "subject" nor a user's public nkey (U...)`);
}

/** `router-1 operate subject, ops purge U...`; or `none`. */
export const issuerListKind: Kind<readonly ListedIssuer[]> = {
  name: "list of issuers",
  range:
    "NAME ROLE PROOF with commas between them, or none; ROLE is operate or purge, PROOF is " +
    "subject or a public nkey (U...)",
  read(raw) {
    if (typeof raw !== "string") return refuse(`is ${typeName(raw)}, not a string`);
    if (raw.trim() === "none") return { ok: true, value: Object.freeze([]) };
    const texts = raw.split(",").map((text) => text.trim());
    if (texts.length > ISSUERS_MAX) return refuse(`names more than ${ISSUERS_MAX} issuers`);
    const issuers = new Map<string, ListedIssuer>();
    for (const text of texts) {
      const read = readIssuer(text);
      if (!read.ok) return read;
      if (issuers.has(read.value.name)) return refuse(`names ${read.value.name} twice`);
      issuers.set(read.value.name, read.value);
    }
    return { ok: true, value: Object.freeze([...issuers.values()]) };
  },
  write(issuers) {
    const texts = issuers.map(({ name, role, key }) => `${name} ${role} ${key ?? SUBJECT}`);
    return texts.length === 0 ? "none" : texts.join(", ");
  },
};
