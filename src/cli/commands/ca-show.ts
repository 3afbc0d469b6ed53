import { readFile } from "node:fs/promises";
import { HearthError, messageOf } from "../../core/index.ts";
import { createJudge } from "../../peers/index.ts";
import { type DescribedCertificate, describeCertificates } from "../ca/index.ts";
import { defineCommand } from "../command.ts";
import { jsonFlag, optional, requiredArgument } from "../flags.ts";
import type { Io } from "../io.ts";
import { text } from "../kinds.ts";
import { printJson, printRecord } from "../output.ts";

export const command = defineCommand({
  description: [
    "Shows the certificates of a file: whose they are, what they may do, and until when. " +
      "With --ca it tells of the first whether hosts that have those authorities let it in, in " +
      "the words they would log; it ends with 1 where they do not.",
  ],
  arguments: { file: requiredArgument(text("FILE"), "certificates in PEM") },
  flags: {
    ca: optional(text("FILE"), "the `peers.ca_file` of the hosts that would judge it"),
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
    const pem = await read(file);
    const found = describeCertificates(file, pem, wallMs);
    const verdict = ca === null ? null : judged(found[0]!, pem, await read(ca), wallMs);
    if (json) printJson(io, documentOf(file, found, verdict));
    else print(io, found, verdict);
    return verdict === null || verdict === "good" ? "ok" : "failed";
  },
});

/** By hosts of the cluster that it says it is of. */
function judged(
  { der, cluster }: DescribedCertificate,
  pem: string,
  authorities: string,
  wallMs: number,
): string {
  const trusting = { cluster: cluster ?? "", authorities, certificates: pem };
  const judgement = createJudge(trusting).authorize(der, null, wallMs);
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

async function read(path: string): Promise<string> {
  try {
    return await readFile(path, "utf8");
  } catch (cause) {
    throw new HearthError("USAGE", `${path} cannot be read: ${messageOf(cause)}`, { cause });
  }
}
