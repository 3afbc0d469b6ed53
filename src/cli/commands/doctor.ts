import {
  type Config,
  formatProblem,
  loadConfig,
  mayUseRdma,
  readMachineFacts,
} from "../../config/index.ts";
import { choiceKind, HearthError, selfCommand, sizeKind, textKind } from "../../core/index.ts";
import {
  type DirectFinding,
  type GpuProbe,
  probeDirect,
  probeGpus,
  probeRdma,
  type RdmaProbe,
} from "../../devices/index.ts";
import { loadNative, nativeAvailable } from "../../native/index.ts";
import { defineCommand, fileKind, jsonFlag, optional, repeated, urlKind } from "../command.ts";
import { formatDoctor, LOOK_MS, lookInChild, type Probe, runDoctor } from "../doctor/index.ts";
import { printJson } from "../terminal.ts";

/** Default path of the engine socket. */
const ENGINE_SOCKET = "/run/hearth/engine.sock";

export const command = defineCommand({
  description: [
    "Checks this host and suggests fixes: native library, memory and its limits, huge pages, " +
      "io_uring, O_DIRECT, NUMA, CUDA, RDMA, NATS, the engine socket. Changes nothing, except " +
      "that a small file exists for a moment while O_DIRECT is tried. GPUs and RDMA devices are " +
      "opened and closed again.",
    "ok: nothing to do. warn: works, but not at its best. fail: the agent cannot run. absent: " +
      "not present, and not needed.",
  ],
  arguments: {},
  flags: {
    config: optional(fileKind, "take the memory and the engine socket from this configuration"),
    ram: optional(sizeKind({ min: 1 }), "size of the RAM tier, instead of the configuration's"),
    path: repeated(textKind("FOLDER"), "try O_DIRECT in this folder"),
    nats: optional(urlKind, "NATS server to reach"),
    look: optional(
      choiceKind(["gpus", "rdma", "direct"]),
      "print the result of probing one library (used by the doctor)",
    ),
    json: jsonFlag,
  },
  examples: [
    { words: "doctor", what: "check the host and suggest fixes" },
    {
      words: "doctor --config /etc/hearth/hearth.toml --path /var/lib/hearth",
      what: "whether this configuration can run here",
    },
    { words: "doctor --nats nats://127.0.0.1:4222 --json", what: "with NATS, as JSON" },
  ],
  exits: ["configRefused", "hostCannot"],
  async run({ flags, io, clock }) {
    const config = flags.config === null ? null : await readConfig(flags.config);
    if (flags.look !== null) {
      printJson(io, await lookHere(flags.look, config));
      return "ok";
    }
    const named = flags.config === null ? [] : ["--config", flags.config];
    const look = <Found>(what: string) =>
      lookInChild<Found>([...selfCommand(), "doctor", "--look", what, ...named], clock, LOOK_MS);
    const report = await runDoctor({
      clock,
      ramBytes: flags.ram ?? config?.kv.ramBytes ?? null,
      engineSocket: config?.engine.socket ?? ENGINE_SOCKET,
      directPaths: flags.path,
      natsUrl: flags.nats,
      notifySocket: process.env.NOTIFY_SOCKET,
      probeLibrary,
      probeIoUring: () => loadNative().probeIoUring(),
      mayUseRdma: config === null || mayUseRdma(config),
      lookAtGpus: () => look<GpuProbe>("gpus"),
      lookAtRdma: () => look<RdmaProbe>("rdma"),
      lookAtDirect: () => look<readonly DirectFinding[]>("direct"),
    });
    if (flags.json) printJson(io, report);
    else io.out.write(formatDoctor(report));
    return report.ok ? "ok" : "hostCannot";
  },
});

/** Probes the device libraries (CUDA, verbs) in this process. */
async function lookHere(
  what: "gpus" | "rdma" | "direct",
  config: Config | null,
): Promise<GpuProbe | RdmaProbe | readonly DirectFinding[]> {
  const native = loadNative();
  const gpuLibrary = config?.gpu.library ?? null;
  if (what === "gpus") return probeGpus(native, gpuLibrary);
  const { library = null, devices = "any", gidIndex = null } = config?.rdma ?? {};
  const choice = { library, devices: devices === "any" ? null : devices, gidIndex };
  const rdma = await probeRdma(native, choice);
  if (what === "rdma") return rdma;
  return probeDirect(native, { gpuLibrary, rdmaLibrary: library, ports: rdma.ports });
}

async function readConfig(path: string): Promise<Config> {
  const result = await loadConfig(path, readMachineFacts());
  if (result.ok) return result.config;
  throw new HearthError("CONFIG_INVALID", result.problems.map(formatProblem).join("\n"));
}

function probeLibrary(): Probe {
  const available = nativeAvailable();
  if (!available.ok) return { ok: false, detail: available.why };
  const { abiHash, optimizeMode } = loadNative().build();
  return { ok: true, detail: `ABI ${abiHash.slice(0, 12)}, ${optimizeMode}` };
}
