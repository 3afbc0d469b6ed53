import { resolve } from "node:path";
import { dateText, issueInto, openAuthority } from "../../peers/index.ts";
import { DAYS_MAX, validityOf, workerKind } from "../ca/index.ts";
import { defineCommand } from "../command.ts";
import { jsonFlag, required, requiredArgument, toggle, withDefault } from "../flags.ts";
import { integer, text } from "../kinds.ts";
import { printRecord } from "../output.ts";

export const command = defineCommand({
  description: [
    "Makes a host's certificate and key with the authority that `hearth ca init` made in DIR. " +
      "Writes WORKER.crt, WORKER.key and ca.crt into --out: the files of `peers.cert_file`, " +
      "`peers.key_file` and `peers.ca_file`. The id is the `node.id` of the host.",
    "A key is never written over. With --renew the key that is there gets a new certificate; an " +
      "agent takes it up by itself, or at once on SIGHUP.",
  ],
  arguments: { dir: requiredArgument(text("DIR"), "the authority's folder") },
  flags: {
    worker: required(workerKind, "whose certificate it is"),
    out: required(text("DIR"), "where the files go; made where it is not there"),
    days: withDefault(integer({ min: 1, max: DAYS_MAX }), 365, "how long it is good for"),
    renew: toggle("make a new certificate for the key that is there"),
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
