import { createHash } from "node:crypto";
import { HearthError } from "../../core/index.ts";
import { dateText, decodePem, OID, parsePeerUri, readCertificate } from "../../peers/index.ts";

/** One certificate of a file, for people and scripts. */
export interface DescribedCertificate {
  readonly kind: "host" | "authority" | "other";
  readonly cluster: string | null;
  readonly worker: string | null;
  readonly names: readonly string[];
  readonly uses: readonly string[];
  readonly not_before: string;
  readonly not_after: string;
  readonly days_left: number;
  readonly fingerprint: string;
  readonly der: Uint8Array;
}

const DAY_MS = 86_400_000;
const USES: Readonly<Record<string, string>> = {
  [OID.serverAuth]: "server",
  [OID.clientAuth]: "client",
};

/** All certificates of a PEM text, in its order. Throws USAGE where there are none. */
export function describeCertificates(
  path: string,
  pem: string,
  wallMs: number,
): DescribedCertificate[] {
  const found = decodePem("CERTIFICATE", pem);
  if (found.length === 0) {
    throw new HearthError("USAGE", `${path} holds no certificate in PEM`, {
      fix: "name a file with certificates, not with a key",
    });
  }
  return found.map((der, index) => describe(`${path}: certificate ${index + 1}`, der, wallMs));
}

function describe(where: string, der: Uint8Array, wallMs: number): DescribedCertificate {
  const read = readCertificate(der);
  if (!read.ok) throw new HearthError("USAGE", `${where} ${read.why}`);
  const { names, authority, keyUsage, extendedKeyUsage, notBeforeMs, notAfterMs } =
    read.certificate;
  const uris = names.filter(({ kind }) => kind === "uri").map(({ value }) => value);
  const peer = uris.length === 1 ? parsePeerUri(uris[0]!) : null;
  const host = peer === null ? "other" : "host";
  return {
    kind: authority === null ? host : "authority",
    cluster: peer?.cluster ?? null,
    worker: peer?.worker ?? null,
    names: names.map(({ kind, value }) => plain(`${kind}:${value}`)),
    uses: [
      ...(extendedKeyUsage ?? []).map((oid) => USES[oid] ?? oid),
      ...(keyUsage?.has("certSign") ? ["sign certificates"] : []),
    ],
    not_before: dateText(notBeforeMs),
    not_after: dateText(notAfterMs),
    days_left: Math.floor((notAfterMs - wallMs) / DAY_MS),
    fingerprint: createHash("sha256").update(der).digest("hex"),
    der,
  };
}

/** What a stranger wrote must not move the cursor. */
function plain(text: string): string {
  return text.replace(/[^ -~]/g, "?");
}
