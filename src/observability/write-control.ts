import {
  BUS_ANSWERS,
  COMMAND_STATUS_LABELS,
  COMMAND_TYPE_LABELS,
  HOLD_KINDS,
  REFUSAL_LABELS,
} from "./catalogue-control.ts";
import type { MetricRegistry } from "./registry.ts";
import type { ControlSnapshot } from "./snapshots.ts";

/** Enters what the control plane counts. */
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
