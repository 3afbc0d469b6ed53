import { type Random, randomBelow } from "../../../src/core/index.ts";
import {
  Connection,
  createFrameHandler,
  ENGINE_LIMITS,
  emptyEngineStats,
  FrameCounts,
  FrameStatus,
  GpuPlane,
  GpuWarming,
} from "../../../src/engine/index.ts";
import {
  createOutput,
  encodeHelloRequest,
  MANIFEST_BYTES_MAX,
  NAME_BYTES,
  pendingOutput,
} from "../../../src/engine/protocol/index.ts";
import { loadNative } from "../../../src/native/index.ts";
import { Namespaces } from "../../../src/store/index.ts";
import { openStoreKit, PAGE } from "../../store/store-kit.ts";
import { verifyStore } from "../../store/verify-store.ts";
import { goldenFrames, goldenManifests } from "../corpus.ts";
import { must, shapeOf, type Target } from "../target.ts";
import { oneOf } from "./text-input.ts";

const SLOTS = 16;
/** The agent answers everything else meanwhile. */
const STALL_MS = 20;
/** Manifests are all different here; an agent that runs knows at most 65,535. */
const NAMESPACES = 10_000;
const NAMES = ["", "vllm-worker-0", "é", "\u{1f525}".repeat(8), "x".repeat(NAME_BYTES)];
/** Where a reply has its operation, and its status; replies are told apart by their length. */
const STATUS_AT = 6;
const TEXT_AT = 24;

/** A HELLO whose manifest may be a damaged one: the frame around it is right. */
function generate(manifests: readonly Uint8Array[], random: Random): Uint8Array {
  const manifest = oneOf(manifests, random).slice();
  for (let i = randomBelow(random, 4); i > 0; i--) {
    manifest[randomBelow(random, manifest.length)] = random.u32() & 0xff;
  }
  const isLong = randomBelow(random, 50) === 0;
  const padding = new Uint8Array(isLong ? MANIFEST_BYTES_MAX - manifest.length : 0);
  const output = createOutput();
  encodeHelloRequest(output, random.u32(), {
    versionMin: 1 + randomBelow(random, 3),
    versionMax: 1 + randomBelow(random, 8),
    features: random.u32(),
    name: oneOf(NAMES, random),
    manifest: new Uint8Array(Buffer.concat([manifest, padding])),
  });
  return pendingOutput(output).slice();
}

/** The first bytes that any process may send to the engine socket. */
export function helloFrames(): Target {
  const native = loadNative();
  const kit = openStoreKit({ arenaBytes: SLOTS * PAGE, blocksMax: 64, gpuWindowBlocks: 8 });
  const { store, clock } = kit;
  const manifests = goldenManifests();
  let namespaces = new Namespaces();
  let fault: unknown = null;
  const onFault = (_connection: Connection, error: unknown) => {
    fault = error;
  };
  const log = () => undefined;
  const handlerOf = () =>
    createFrameHandler({
      ...{ store, namespaces, native, onFault, log },
      ...{ hashing: native, digests: native, incarnation: 1n, limits: ENGINE_LIMITS },
      gpu: new GpuPlane({ gpus: null, native, stats: emptyEngineStats(), clock, log }),
      warm: new GpuWarming({ clock, itemsMax: ENGINE_LIMITS.itemsMax }),
      frames: new FrameCounts(),
      nowMs: () => clock.monotonicMs(),
      lookedUp: log,
      draining: () => false,
      sendFd: (connection) => connection.takePending().length,
    });
  let handle = handlerOf();
  const settle = () => {
    verifyStore(store);
    must(fault === null, `no HELLO fails: ${String(fault)}`);
  };
  return {
    name: "hello",
    stallMs: STALL_MS,
    corpus: goldenFrames("request").filter((frame) => frame[4] === 1),
    generate: (random) => generate(manifests, random),
    run(input, saw) {
      if (namespaces.described().length > NAMESPACES) {
        namespaces = new Namespaces();
        handle = handlerOf();
      }
      let refusal: string | null = null;
      let isEnded = false;
      const ended = () => {
        isEnded = true;
      };
      const wire = {
        write(bytes: Uint8Array) {
          if (bytes[STATUS_AT] !== FrameStatus.ok)
            refusal = Buffer.from(bytes.subarray(TEXT_AT)).toString();
          return bytes.length;
        },
        pause: () => undefined,
        resume: () => undefined,
        end: ended,
        terminate: ended,
      };
      const nowMs = () => clock.monotonicMs();
      const connection = new Connection(1, wire, { limits: ENGINE_LIMITS, handle, nowMs, onFault });
      connection.receive(input);
      const { greeted } = connection;
      must(greeted === null || !isEnded || refusal !== null, "a greeted line ends with a reason");
      saw(greeted === null ? shapeOf(refusal ?? "waits") : `greeted ${greeted.features}`);
      greeted?.warm.close();
      greeted?.gpu.close();
      greeted?.holder.abandon();
      greeted?.holder.buried();
    },
    settle,
    close: () => kit[Symbol.asyncDispose]() as Promise<void>,
  };
}
