/**
 * An engine with a GPU of the stand-in, in its own process, because a memory handle cannot be
 * opened in the process that exported it. Arguments: SOCKET TENANT. Each line of standard input is
 * `[command, ...arguments]`; each is answered by a line with its result.
 */
import { createPieceItems, EngineClient, type PieceItems } from "../../../src/engine/index.ts";
import { type GpuMemory, loadNative, openGpus, Region } from "../../../src/native/index.ts";
import { CommitFlag } from "../../../src/store/index.ts";
import { seedOf } from "../../store/names.ts";
import { standIn } from "../../support/stand-ins.ts";
import { manifestBytes } from "../agent-kit.ts";
import { Engine, type Handle, handleBatch } from "../engine.ts";

const MEMORY_BYTES = 2 ** 21;
/** Offset of the engine's part in its allocation. */
const PART_AT = 64 * 1024;
/** Distance of the blocks in the memory: large enough to detect a wrong place. */
const PLACE_BYTES = 8 * 1024;
const PIECE_BYTES = 2_048;

const [socketPath, tenant] = process.argv.slice(2) as [string, string];
const native = loadNative();
const cuda = standIn("libcuda.so.1");
const scratch = Region.create(native, { bytes: 2 ** 20, hugePages: "off", lockMemory: "off" });
const gpus = openGpus(native, {
  region: scratch,
  library: cuda.path,
  jobsMax: 64,
  piecesMax: 4_096,
  onLost: () => undefined,
});
const manifest = manifestBytes(tenant);
const client = await EngineClient.connect(native, { socketPath, manifest, name: "gpu-child" });
const engine = new Engine(client);
const { uuid } = gpus.devices()[0]!;
const memories: GpuMemory[] = [];
/** The agent's number of the memory in use. */
let current = 0;
let held: Handle[] = [];

function must<Value extends { readonly ok: boolean }>(value: Value) {
  if (!value.ok) throw new Error(JSON.stringify(value));
  return value as Extract<Value, { readonly ok: true }>;
}

/** Allocates and registers memory `times` times, by handle or by descriptor. */
async function register(kind: string, times = "1") {
  const exportable = kind === "fd";
  const { memory } = must(await gpus.allocate(0, MEMORY_BYTES, { exportable }));
  memories.push(memory);
  const part = { uuid, bytes: MEMORY_BYTES - PART_AT, allocationBytes: MEMORY_BYTES };
  if (exportable) {
    const { fd } = must(await gpus.exportFd(memory));
    const one = { ...part, offset: PART_AT, fd };
    const answers = await client.gpu.register(new Array(Number(times)).fill(one));
    native.closeFd(fd);
    current = answers.at(-1)!.memory;
    return answers.at(-1);
  }
  const { handle, offset } = must(await gpus.exportIpc(memory));
  const [answer] = await client.gpu.register([{ ...part, offset: offset + PART_AT, handle }]);
  current = answer!.memory;
  return answer;
}

/** The pieces of these blocks. The first piece of a block is the last in memory. */
function piecesOf(handles: readonly Handle[]): PieceItems {
  const items = createPieceItems(64);
  for (const [at, { slot, generation, bytes }] of handles.entries()) {
    for (let start = 0; start < bytes; start += PIECE_BYTES) {
      const i = items.count++;
      items.slot[i] = slot;
      items.generation[i] = generation;
      items.memory[i] = current;
      items.slotOffset[i] = start;
      items.memoryOffset[i] = at * PLACE_BYTES + (PLACE_BYTES - PIECE_BYTES - start);
      items.bytes[i] = Math.min(PIECE_BYTES, bytes - start);
    }
  }
  return items;
}

/** The same pieces between the scratch memory of this process and its GPU. */
function ownPieces(items: PieceItems, handles: readonly Handle[]) {
  const places = new Map(handles.map(({ slot }, at) => [slot, at * PLACE_BYTES]));
  return Array.from({ length: items.count }, (_, i) => ({
    regionOffset: places.get(items.slot[i]!)! + items.slotOffset[i]!,
    memoryOffset: PART_AT + items.memoryOffset[i]!,
    bytes: items.bytes[i]!,
  }));
}

/** Writes the bytes of the held blocks to this engine's GPU, as a kernel would. */
async function compute(): Promise<PieceItems> {
  const items = piecesOf(held);
  for (const [at, { name, bytes }] of held.entries()) {
    scratch.fill(at * PLACE_BYTES, bytes, seedOf(name));
  }
  must(await gpus.toGpu(memories.at(-1)!, ownPieces(items, held)));
  return items;
}

async function copy(op: "store" | "load", items: PieceItems, verify = false): Promise<number[]> {
  const out = { count: 0, outcome: new Uint32Array(64) };
  if (op === "store") await client.gpu.store(items, out);
  else await client.gpu.load(items, { verify }, out);
  return [...out.outcome.subarray(0, out.count)];
}

const commands: Record<string, (...words: string[]) => unknown> = {
  register,
  async devices() {
    const { features } = client.hello;
    const devices = await client.gpu.devices();
    return { features, devices: devices.map((one) => ({ ...one, uuid: one.uuid.toHex() })) };
  },
  uuid: () => uuid.toHex(),
  async reserve(...names) {
    held = await engine.reserve(...names);
    return held.map(({ outcome }) => outcome);
  },
  store: async () => copy("store", await compute()),
  commit: () => engine.commit(held),
  /** Commits with the checksums of the computed bytes. */
  async commitChecked() {
    const batch = handleBatch(held);
    for (const [at, { bytes }] of held.entries()) {
      batch.flags[at] = CommitFlag.checksumGiven;
      batch.checksum[at] = scratch.checksum(at * PLACE_BYTES, bytes);
    }
    await client.commit(batch);
    return [...batch.outcome];
  },
  abort: () => engine.abort(held),
  /** Both are sent before either is answered. */
  async storeAndCommit() {
    const items = await compute();
    return Promise.all([copy("store", items), engine.commit(held)]);
  },
  async acquire(...names) {
    held = await engine.acquire(...names);
    return held.map(({ outcome }) => outcome);
  },
  load: (verify) => copy("load", piecesOf(held), verify === "verify"),
  /** Whether the loaded blocks are on the GPU, byte for byte. */
  async proves() {
    const items = piecesOf(held);
    scratch.fill(0, scratch.bytes, 0xbadn);
    must(await gpus.fromGpu(memories.at(-1)!, ownPieces(items, held)));
    return held.map(
      ({ name, bytes }, at) => scratch.firstWrong(at * PLACE_BYTES, bytes, seedOf(name)) === null,
    );
  },
  /** Loads with one wrong value. Returns the outcomes. */
  async wrong(op, column, value) {
    const items = piecesOf(held);
    (items[column as "slot"] as Uint32Array)[0] = Number(value);
    return copy(op as "store" | "load", items);
  },
  release() {
    engine.release(held);
    return client.ping(new Uint8Array(8)).then(() => "ok");
  },
  async unregister(...numbers) {
    const out = { count: 0, outcome: new Uint32Array(64) };
    const memory = Uint32Array.from(numbers, Number);
    await client.gpu.unregister({ count: memory.length, memory }, out);
    return [...out.outcome.subarray(0, out.count)];
  },
  /** Takes offered blocks, copies them to the GPU and reports the outcomes. */
  async takeOffer() {
    const none = { count: 0, outcome: new Uint32Array(8) };
    const blocks = { count: 0, layer: 0, digests: new Uint8Array(32 * 8) };
    const offer = await client.gpu.warm({ offer: 0, deadlineMs: 20_000 }, none, blocks);
    return {
      offer,
      count: blocks.count,
      digests: blocks.digests.slice(0, 32 * blocks.count).toHex(),
    };
  },
};

console.log(JSON.stringify("ready"));
for await (const line of console) {
  const [command, ...words] = JSON.parse(line) as [string, ...string[]];
  console.log(JSON.stringify((await commands[command]!(...words)) ?? null));
}
