import { resolve } from "node:path";
import { dateText, initAuthority } from "../../peers/index.ts";
import { clusterKind, DAYS_MAX, validityOf } from "../ca/index.ts";
import { defineCommand } from "../command.ts";
import { jsonFlag, requiredArgument, withDefault } from "../flags.ts";
import { integer, text } from "../kinds.ts";
import { printRecord } from "../output.ts";

export const command = defineCommand({
  description: [
    "Makes the authority that signs the certificates of a cluster's hosts: DIR/ca.crt, which " +
      "every host gets, and DIR/ca.key, which no host gets. Keep the folder where few can read " +
      "it, on no host of the cluster; `hearth ca issue` needs it for each new host.",
    "It is a small authority for those who have none. Where there is one already, let it sign: " +
      "a host's certificate has the URI name spiffe://CLUSTER/hearth/WORKER and the DNS name " +
      "WORKER, and is for servers and for clients.",
  ],
  arguments: { dir: requiredArgument(text("DIR"), "made where it is not there") },
  flags: {
    cluster: withDefault(clusterKind, "hearth", "`peers.cluster` of all hosts"),
    days: withDefault(integer({ min: 1, max: DAYS_MAX }), 3_650, "how long it is good for"),
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
