import { durationKind, numberKind, sizeKind } from "../../core/index.ts";
import { issuerListKind } from "../peer-kinds.ts";
import { optionalPath, section, withDefault } from "../spec.ts";

const DAY_MS = 86_400_000;

const issuers = withDefault({
  key: "issuers",
  kind: issuerListKind,
  defaultValue: "none",
  reload: true,
  doc:
    "Issuers that must prove their names, separated by commas. Each entry is a name, a role and " +
    "a proof, as in `router-1 operate subject`. The proof is `subject` (the issuer publishes on " +
    "`kv-control-{worker}.{issuer}`, and the NATS server must permit that subject to no other " +
    "user) or a public nkey (`U...`) that verifies the issuer's signatures. A command that " +
    "names a listed issuer without the proof is refused.",
});

export const controlSection = section("Lifecycle commands: budgets, limits, the audit log.", {
  pinShare: withDefault({
    key: "pin_share",
    kind: numberKind({ min: 0, max: 0.95 }, "ratio"),
    defaultValue: 0.5,
    reload: true,
    doc:
      "Share of RAM and SSD together that pins and leases may protect, including the ancestors of " +
      "their blocks. A command above the limit is rejected with the figures; 0 turns pins and " +
      "leases off.",
  }),
  pinShareOwner: withDefault({
    key: "pin_share_owner",
    kind: numberKind({ min: 0, max: 0.95 }, "ratio"),
    defaultValue: 0.25,
    reload: true,
    doc: "Share of RAM and SSD together that the pins and leases of one owner may protect.",
  }),
  leaseTtlMaxMs: withDefault({
    key: "lease_ttl_max",
    kind: durationKind({ min: 1_000, max: 366 * DAY_MS, example: "7d" }),
    defaultValue: "24h",
    reload: true,
    doc: "Maximum time to live of a lease without renewal, and the default of leases that name none.",
  }),
  warmBytesMax: withDefault({
    key: "warm_bytes_max",
    kind: sizeKind({ min: 4096, max: 2 ** 44, multiple: 4096, example: "16GiB" }),
    defaultValue: "8GiB",
    reload: true,
    doc: "Maximum bytes that warm commands bring to RAM at the same time; the rest waits.",
  }),
  issuers,
  auditFile: optionalPath(
    "audit_file",
    "/var/log/hearth/audit.jsonl",
    "The audit log: one JSON line for each command, with time, issuer, command and result. It " +
      "is rotated at 64MiB. If unset, there is no audit log.",
  ),
});

export const namespacesSection = section("Namespace keys, for agents that verify MACs.", {
  keyDir: optionalPath(
    "key_dir",
    "/etc/hearth/keys",
    "Folder of namespace keys. Each regular file is one secret of 16 to 4096 bytes with mode " +
      "0600. If the agent has the key of a namespace, it verifies the MAC of each block that an " +
      "engine, a peer or the SSD delivers. Otherwise it stores the MAC, and the engines verify " +
      "it. Files whose names begin with a dot are ignored.",
  ),
});
