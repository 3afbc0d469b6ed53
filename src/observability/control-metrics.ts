import type { MetricSpec } from "./catalogue.ts";
import type { MetricRegistry } from "./registry.ts";
import type { ControlSnapshot } from "./snapshots.ts";

export const HOLD_KINDS = ["pin", "retain", "lease"] as const;

/** Command names. */
export const COMMAND_TYPE_LABELS = [
  "Warm",
  "Prune",
  "Cache",
  "Think",
  "Pause",
  "RenewLease",
  "RevokeLease",
  "Flush",
] as const;
export const COMMAND_STATUS_LABELS = ["ok", "partial"] as const;
/** Codes at the start of a refused command's reason. */
export const REFUSAL_LABELS = [
  "malformed",
  "unknown_type",
  "too_large",
  "too_deep",
  "forbidden",
  "unproven",
  "replayed",
  "implausible",
  "broadcast_refused",
  "expired",
  "rate_limited",
  "id_reused",
  "stale",
  "fenced",
  "busy",
  "internal",
] as const;

/** Outcomes of answers to commands over NATS. */
export const BUS_ANSWERS = ["answered", "unasked", "lost", "unread"] as const;

/** Metrics of the control plane: pins and leases, commands, and the bus. */
export const CONTROL_METRICS = {
  holds: {
    name: "hearth_holds",
    type: "gauge",
    help: "Current pins, soft pins and leases",
    labels: { kind: HOLD_KINDS },
  },
  heldBlocks: {
    name: "hearth_held_blocks",
    type: "gauge",
    help: "Distinct blocks named by pins, soft pins and leases",
    labels: { kind: HOLD_KINDS },
  },
  heldBytes: {
    name: "hearth_held_bytes",
    type: "gauge",
    help: "Bytes of the blocks named by pins, soft pins and leases",
    labels: { kind: HOLD_KINDS },
  },
  keptBytes: {
    name: "hearth_kept_bytes",
    type: "gauge",
    help: "Protected bytes: pinned and leased blocks and their ancestors",
    labels: {},
  },
  keptBytesMax: {
    name: "hearth_kept_bytes_max",
    type: "gauge",
    help: "The budget for protected bytes, control.pin_share of RAM and SSD",
    labels: {},
  },
  holdsEnded: {
    name: "hearth_holds_ended_total",
    type: "counter",
    help:
      "Pins, soft pins and leases that ended without a command: evicted for space, " +
      "expired, or blocks lost",
    labels: { how: ["relieved", "expired", "lost"] },
  },
  commands: {
    name: "hearth_commands_total",
    type: "counter",
    help: "Lifecycle commands carried out, by status of the receipt",
    labels: { type: COMMAND_TYPE_LABELS, status: COMMAND_STATUS_LABELS },
  },
  commandsRefused: {
    name: "hearth_commands_refused_total",
    type: "counter",
    help: "Lifecycle commands refused, by code of `hearth reference commands`",
    labels: { reason: REFUSAL_LABELS },
  },
  commandDuplicates: {
    name: "hearth_command_duplicates_total",
    type: "counter",
    help: "Repeated commands answered with the stored receipt",
    labels: {},
  },
  commandsRunning: {
    name: "hearth_commands_running",
    type: "gauge",
    help: "Commands executing",
    labels: {},
  },
  auditDropped: {
    name: "hearth_audit_lines_dropped_total",
    type: "counter",
    help: "Lines dropped by the audit log",
    labels: {},
  },
  ledgerPending: {
    name: "hearth_ledger_pending",
    type: "gauge",
    help: "Changes of pins and leases not yet on disk",
    labels: {},
  },
  ledgerDropped: {
    name: "hearth_ledger_dropped_total",
    type: "counter",
    help: "Changes of pins and leases dropped because the disk did not accept them in time",
    labels: {},
  },
  busConnected: {
    name: "hearth_bus_connected",
    type: "gauge",
    help: "Whether NATS is connected: 1 or 0; 0 without NATS",
    labels: {},
  },
  busReconnects: {
    name: "hearth_bus_reconnects_total",
    type: "counter",
    help: "Reconnections to NATS",
    labels: {},
  },
  busMessages: {
    name: "hearth_bus_messages_total",
    type: "counter",
    help:
      "Messages over NATS; dropped: not connected and the queue was full; ignored: " +
      "received and not " +
      "answered because of a discovery flood",
    labels: { direction: ["sent", "received", "dropped", "ignored"] },
  },
  busAnswers: {
    name: "hearth_bus_answers_total",
    type: "counter",
    help:
      "Answers to commands over NATS; lost: the bus did not accept the answer; unread: the " +
      "command was not decoded because of its rate",
    labels: { outcome: BUS_ANSWERS },
  },
  busStreamReading: {
    name: "hearth_bus_stream_reading",
    type: "gauge",
    help: "Whether the command stream is consumed: 1 or 0; 0 without one",
    labels: {},
  },
  busStreamMessages: {
    name: "hearth_bus_stream_messages_total",
    type: "counter",
    help: "Messages of the command stream; given_up: not handled in ten attempts",
    labels: { outcome: ["handled", "given_up"] },
  },
  busQueued: {
    name: "hearth_bus_queued_messages",
    type: "gauge",
    help: "Messages queued for a connection",
    labels: {},
  },
} as const satisfies Record<string, MetricSpec>;

/** Writes the control plane's counters to the registry. */
export function writeControl(registry: MetricRegistry, control: ControlSnapshot): void {
  const { holds, bus, ledger } = control;
  for (const kind of HOLD_KINDS) {
    registry.set("holds", holds[kind].holds, { kind });
    registry.set("heldBlocks", holds[kind].blocks, { kind });
    registry.set("heldBytes", holds[kind].bytes, { kind });
  }
  for (const how of ["relieved", "expired", "lost"] as const) {
    registry.set("holdsEnded", holds[how], { how });
  }
  registry.set("keptBytes", control.keptBytes);
  registry.set("keptBytesMax", control.keptBytesMax);
  writeCommands(registry, control.commands);
  for (const reason of REFUSAL_LABELS) {
    registry.set("commandsRefused", control.refused[reason] ?? 0, { reason });
  }
  registry.set("commandDuplicates", control.duplicates);
  registry.set("commandsRunning", control.running);
  registry.set("auditDropped", control.auditDropped);
  registry.set("ledgerPending", ledger?.pending ?? 0);
  registry.set("ledgerDropped", ledger?.dropped ?? 0);
  registry.set("busConnected", bus?.status === "connected" ? 1 : 0);
  registry.set("busReconnects", bus?.reconnects ?? 0);
  registry.set("busMessages", bus?.sentMessages ?? 0, { direction: "sent" });
  registry.set("busMessages", bus?.receivedMessages ?? 0, { direction: "received" });
  registry.set("busMessages", bus?.ignoredMessages ?? 0, { direction: "ignored" });
  registry.set("busMessages", bus?.droppedMessages ?? 0, { direction: "dropped" });
  registry.set("busQueued", bus?.queuedMessages ?? 0);
  for (const outcome of BUS_ANSWERS) {
    registry.set("busAnswers", bus?.answers[outcome] ?? 0, { outcome });
  }
  registry.set("busStreamReading", bus?.stream?.status === "consuming" ? 1 : 0);
  registry.set("busStreamMessages", bus?.stream?.handled ?? 0, { outcome: "handled" });
  registry.set("busStreamMessages", bus?.stream?.givenUp ?? 0, { outcome: "given_up" });
}

function writeCommands(registry: MetricRegistry, commands: ControlSnapshot["commands"]): void {
  for (const type of COMMAND_TYPE_LABELS) {
    for (const status of COMMAND_STATUS_LABELS) {
      const mine = commands.find((one) => one.status === status && one.type === type);
      registry.set("commands", mine?.count ?? 0, { type, status });
    }
  }
}
