import { createHash } from "node:crypto";
import { resolve } from "node:path";
import { clusterNameKind, workerIdKind } from "../../config/index.ts";
import { type Clock, HearthError, integerKind } from "../../core/index.ts";
import {
  createAuthorizer,
  dateText,
  decodePem,
  initAuthority,
  issueInto,
  OID,
  openAuthority,
  parsePeerUri,
  readCertificate,
  type Validity,
} from "../../peers/index.ts";
import {
  defineCommand,
  fileKind,
  fileText,
  folderKind,
  jsonFlag,
  optional,
  required,
  requiredArgument,
  toggle,
  withDefault,
} from "../command.ts";
import { type Io, printJson, printRecord } from "../terminal.ts";

const DAY_MS = 86_400_000;

/** Maximum difference, in milliseconds, between the clocks of two hosts of the cluster. */
const SKEW_MS = 3_600_000;

export const DAYS_MAX = 36_500;

export const caInitCommand = defineCommand({
  description: [
    "Creates the authority that signs the certificates of a cluster's hosts: DIR/ca.crt, which " +
      "every host needs, and DIR/ca.key, which no host may have. Keep the folder private and off " +
      "the hosts of the cluster; `hearth ca issue` needs it for each new host.",
    "If you already have an authority, use that one: a host's certificate needs the URI name " +
      "spiffe://CLUSTER/hearth/WORKER, the DNS name WORKER, and the extended key usages for " +
      "servers and clients.",
  ],
  arguments: { dir: requiredArgument(folderKind, "folder of the authority; created if missing") },
  flags: {
    cluster: withDefault(clusterNameKind, "hearth", "`peers.cluster` of all hosts"),
    days: withDefault(integerKind({ min: 1, max: DAYS_MAX }), 3_650, "validity in days"),
    json: jsonFlag,
  },
  examples: [
    { words: "ca init /safe/hearth-ca", what: "an authority for the cluster hearth" },
    { words: "ca init ca-prod --cluster prod.example", what: "for a cluster of another name" },
  ],
  exits: [],
  async run({ flags: { cluster, days, json }, arguments: { dir }, io, clock }) {
    const made = initAuthority(resolve(dir), cluster, validityOf(clock, days));
    const record = {
      cluster,
      certificate: made.certFile,
      key: made.keyFile,
      not_after: dateText(made.certificate.notAfterMs),
      fingerprint: made.fingerprint,
    };
    printRecord(io, record, json);
    return "ok";
  },
});

export const caIssueCommand = defineCommand({
  description: [
    "Issues a host's certificate and key with the authority that `hearth ca init` created in " +
      "DIR. Writes WORKER.crt, WORKER.key and ca.crt into --out: the files of `peers.cert_file`, " +
      "`peers.key_file` and `peers.ca_file`. The id is the `node.id` of the host.",
    "A key is never overwritten. With --renew, the existing key gets a new certificate; an " +
      "agent reloads it automatically, or at once on SIGHUP.",
  ],
  arguments: { dir: requiredArgument(folderKind, "the authority's folder") },
  flags: {
    worker: required(workerIdKind, "id of the worker"),
    out: required(folderKind, "folder for the files; created if missing"),
    days: withDefault(integerKind({ min: 1, max: DAYS_MAX }), 365, "validity in days"),
    renew: toggle("issue a new certificate for the existing key"),
    json: jsonFlag,
  },
  examples: [
    { words: "ca issue ca-prod --worker gpu-01 --out gpu-01", what: "the three files of a host" },
    { words: "ca issue ca-prod --worker gpu-01 --out gpu-01 --renew", what: "another year" },
    {
      words: "ca issue ca-prod --worker gpu-02 --out gpu-02 --days 90 --json",
      what: "for scripts that renew it every month",
    },
  ],
  exits: [],
  async run({ flags, arguments: { dir }, io, clock }) {
    const { worker, days, renew, json } = flags;
    const authority = openAuthority(resolve(dir));
    const validity = validityOf(clock, days);
    const issued = issueInto(resolve(flags.out), authority, { worker, validity, renew });
    const record = {
      cluster: authority.cluster,
      worker,
      certificate: issued.certFile,
      key: issued.keyFile,
      authorities: issued.caFile,
      not_after: dateText(issued.certificate.notAfterMs),
      fingerprint: issued.fingerprint,
      renewed: issued.isRenewed,
    };
    printRecord(io, record, json);
    return "ok";
  },
});

/** Returns a validity period of `days` days that begins one maximum clock skew in the past. */
export function validityOf(clock: Clock, days: number): Validity {
  const nowMs = clock.wallMs();
  return { notBeforeMs: nowMs - SKEW_MS, notAfterMs: nowMs + days * DAY_MS };
}

export const caShowCommand = defineCommand({
  description: [
    "Shows the certificates in a file: names, usages and validity. With --ca it verifies the " +
      "first certificate against those authorities, as a host does, and prints the message that " +
      "the host would log; the exit code is 1 if it is refused.",
  ],
  arguments: { file: requiredArgument(fileKind, "certificates in PEM") },
  flags: {
    ca: optional(fileKind, "the `peers.ca_file` of the hosts that verify it"),
    json: jsonFlag,
  },
  examples: [
    { words: "ca show gpu-01/gpu-01.crt", what: "names, uses and dates" },
    {
      words: "ca show gpu-01/gpu-01.crt --ca gpu-02/ca.crt",
      what: "whether gpu-02 would let gpu-01 in",
    },
  ],
  exits: [],
  async run({ flags: { ca, json }, arguments: { file }, io, clock }) {
    const wallMs = clock.wallMs();
    const pem = await fileText(file);
    const found = describeCertificates(file, pem, wallMs);
    const verdict = ca === null ? null : judged(found[0], pem, await fileText(ca), wallMs);
    if (json) printJson(io, documentOf(file, found, verdict));
    else print(io, found, verdict);
    return verdict === null || verdict === "good" ? "ok" : "failed";
  },
});

/**
 * Verifies the certificate as a host of the cluster that the certificate names would. Returns
 * "good", or the reason for which it is refused.
 */
function judged(
  { der, cluster }: DescribedCertificate,
  pem: string,
  authorities: string,
  wallMs: number,
): string {
  const trusting = { cluster: cluster ?? "", authorities, certificates: pem };
  const judgement = createAuthorizer(trusting).authorize(der, null, wallMs);
  return judgement.ok ? "good" : judgement.why;
}

function documentOf(
  file: string,
  found: readonly DescribedCertificate[],
  verdict: string | null,
): object {
  const certificates = found.map(({ der: _der, ...shown }) => shown);
  if (verdict === null) return { file, certificates };
  return { file, certificates, good: verdict === "good", verdict };
}

function print(io: Io, found: readonly DescribedCertificate[], verdict: string | null): void {
  for (const [index, { der: _der, names, uses, ...shown }] of found.entries()) {
    if (index > 0) io.out.write("\n");
    const lists = { names: names.join(" "), uses: uses.join(", ") };
    printRecord(io, { ...shown, ...lists }, false);
  }
  if (verdict !== null) io.out.write(`\n${verdict}\n`);
}

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

const USES: Readonly<Record<string, string>> = {
  [OID.serverAuth]: "server",
  [OID.clientAuth]: "client",
};

/** Describes all certificates of a PEM text, in order. Throws USAGE if it contains none. */
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
  const peer = uris.length === 1 ? parsePeerUri(uris[0]) : null;
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

/**
 * Returns text of a certificate without control characters. The text is untrusted and could
 * otherwise change the terminal.
 */
function plain(text: string): string {
  return text.replace(/[^ -~]/g, "?");
}
