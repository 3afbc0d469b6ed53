import { durationKind, exactBytes, integerKind, pathKind, ratioKind, sizeKind } from "../kinds.ts";
import { issuerListKind } from "../peer-kinds.ts";
import { optional, section, withDefault } from "../spec.ts";

const DAY_MS = 86_400_000;
const PATH_BYTES_MAX = 4095;
export const AUDIT_BYTES = 64 * 2 ** 20;
export const AUDIT_FILES = 5;

const pinShare = withDefault({
  key: "pin_share",
  kind: ratioKind({ min: 0, max: 0.95 }),
  standard: 0.5,
  reload: true,
  doc:
    "Share of RAM and SSD together that pins and leases may keep, blocks above them in the tree " +
    "included. What would go over it is rejected with figures; 0 turns pins and leases off.",
});

const pinShareOwner = withDefault({
  key: "pin_share_owner",
  kind: ratioKind({ min: 0, max: 0.95 }),
  standard: 0.25,
  reload: true,
  doc: "The same for the pins and leases of one owner.",
});

const leaseTtlMaxMs = withDefault({
  key: "lease_ttl_max",
  kind: durationKind({ min: 1_000, max: 366 * DAY_MS, example: "7d" }),
  standard: "24h",
  reload: true,
  doc: "The longest a lease lasts without renewal; also how long one lasts that names no time.",
});

const retainIdleMs = withDefault({
  key: "retain_idle",
  kind: durationKind({ min: 1_000, max: 366 * DAY_MS, example: "10m" }),
  standard: "1h",
  reload: true,
  doc:
    "Soft pins (`retain`) that name no time: unused for longer than this, their priority halves " +
    "with each such time, until they are over.",
});

const commandsPerSecond = withDefault({
  key: "commands_per_second",
  kind: integerKind({ min: 1, max: 1_000_000 }),
  standard: 20_000,
  reload: true,
  doc:
    "Commands of one issuer a second, or of one token whatever issuers it names; what comes " +
    "faster is refused, not queued.",
});

const commandsBurst = withDefault({
  key: "commands_burst",
  kind: integerKind({ min: 1, max: 1_000_000 }),
  standard: 20_000,
  reload: true,
  doc: "Commands that one issuer, or one token, may send at once after a pause.",
});

const warmBytesMax = withDefault({
  key: "warm_bytes_max",
  kind: sizeKind({ min: 4096, max: 2 ** 44, multiple: 4096, example: "16GiB" }),
  standard: "8GiB",
  reload: true,
  doc: "Bytes that warm commands may be bringing to RAM at the same time; the rest waits.",
});

const warmReads = withDefault({
  key: "warm_reads",
  kind: integerKind({ min: 1, max: 1_024 }),
  standard: 8,
  reload: true,
  doc: "Blocks read from SSD at the same time for warm commands; engines' reads go first.",
});

const issuers = withDefault({
  key: "issuers",
  kind: issuerListKind,
  standard: "none",
  reload: true,
  doc:
    "Issuers that have to prove their names, with what each may do then: a name, a role and a " +
    "proof, with commas between issuers. The proof is `subject` (it publishes on " +
    "`kv-control-{worker}.{issuer}`, which the NATS server must permit to it alone) or a public " +
    "nkey (`U...`), with which it signs, as in `router-1 operate subject`. A command under such " +
    "a name without the proof is refused.",
});

const auditFile = optional({
  key: "audit_file",
  kind: pathKind({ bytesMax: PATH_BYTES_MAX, example: "/var/log/hearth/audit.jsonl" }),
  reload: false,
  doc: "One JSON line for each command: when, who, what, and what came of it. Unset: no audit log.",
  example: "/var/log/hearth/audit.jsonl",
});

const auditBytesMax = withDefault({
  key: "audit_bytes",
  kind: sizeKind({ min: 4096, max: 2 ** 40, example: exactBytes(AUDIT_BYTES) }),
  standard: exactBytes(AUDIT_BYTES),
  reload: false,
  doc: "At this length the audit log is set aside under a number and a new one begun.",
});

const auditFiles = withDefault({
  key: "audit_files",
  kind: integerKind({ min: 1, max: 1_000 }),
  standard: AUDIT_FILES,
  reload: false,
  doc: "How many audit logs that were set aside are kept; the oldest goes.",
});

export const controlSection = section("Lifecycle commands: budgets, limits, the audit log.", {
  pinShare,
  pinShareOwner,
  leaseTtlMaxMs,
  retainIdleMs,
  commandsPerSecond,
  commandsBurst,
  warmBytesMax,
  warmReads,
  issuers,
  auditFile,
  auditBytesMax,
  auditFiles,
});

const keyDir = optional({
  key: "key_dir",
  kind: pathKind({ bytesMax: PATH_BYTES_MAX, example: "/etc/hearth/keys" }),
  reload: false,
  doc:
    "Folder of namespace keys: each regular file is one secret of 16 to 4096 bytes, which nobody " +
    "but its owner may read (mode 0600). With the key of a namespace the agent checks the MAC of " +
    "each block that an engine, a peer or SSD gives it. Without it the agent keeps the MAC, and " +
    "the engines, which have the key, check it. Names that begin with a dot are left out.",
  example: "/etc/hearth/keys",
});

export const namespacesSection = section("Keys of namespaces, for agents that check MACs.", {
  keyDir,
});
