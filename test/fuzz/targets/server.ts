import {
  Connection,
  createFrameHandler,
  ENGINE_LIMITS,
  emptyEngineStats,
  Feature,
  FrameCounts,
  GpuPlane,
  GpuWarming,
} from "../../../src/engine/index.ts";
import { loadNative } from "../../../src/native/index.ts";
import { Namespaces } from "../../../src/store/index.ts";
import { openStoreKit, PAGE } from "../../store/store-kit.ts";
import { verifyStore } from "../../store/verify-store.ts";
import { endlessTurns } from "../../support/endless-turns.ts";
import { FakeGpus } from "../../support/fake-gpus.ts";
import { goldenFrames } from "../corpus.ts";
import { must, type Target } from "../target.ts";

const SLOTS = 64;
/** In a HELLO, header included. */
const FEATURES_AT = 24;
const SETTLE_EVERY = 200;

/** Whole conversations with the agent's own handlers and store; only the socket is missing. */
export function serverTarget(): Target {
  const native = loadNative();
  const kit = openStoreKit({ arenaBytes: SLOTS * PAGE, blocksMax: 512, gpuWindowBlocks: 64 });
  const { store, clock } = kit;
  // The device that the golden frames name.
  const gpus = new FakeGpus(
    Uint8Array.from({ length: 16 }, (_, i) => 0xd0 + i),
    2 ** 37,
  );
  let fault: unknown = null;
  const onFault = (_connection: Connection, error: unknown) => {
    fault = error;
  };
  const handle = createFrameHandler({
    store,
    namespaces: new Namespaces(),
    hashing: native,
    digests: native,
    native,
    gpu: new GpuPlane({
      gpus,
      native,
      stats: emptyEngineStats(),
      clock,
      log: () => undefined,
    }),
    warm: new GpuWarming({ clock, itemsMax: 256 }),
    limits: { ...ENGINE_LIMITS, itemsMax: 256 },
    incarnation: 1n,
    frames: new FrameCounts(),
    nowMs: () => clock.monotonicMs(),
    lookedUp: () => undefined,
    draining: () => false,
    sendFd: (connection) => connection.takePending().length,
    log: () => undefined,
    onFault,
  });
  const frames = goldenFrames("request");
  const hello = frames.find((frame) => frame[4] === 1)!.slice();
  // Of the features it asks for: what connections of one engine may send.
  hello[FEATURES_AT] = Feature.engine;
  let runs = 0;
  const settle = () => {
    verifyStore(store);
    must(store.slots.quarantinedSlots === 0, "the dead hold nothing");
    must(gpus.openMemories === 0, "memory is given back");
    must(store.engines.book.stats.bytes === 0, "nothing is reserved for the dead");
    must(store.engines.lookups.size === 0, "no lookup of the dead waits");
    must(fault === null, `no commit fails: ${String(fault)}`);
  };
  return {
    name: "server",
    // Nearly all of the agent lies behind a hello that is right.
    corpus: frames.map((frame) => new Uint8Array(Buffer.concat([hello, frame]))),
    async run(input, saw) {
      if (++runs % SETTLE_EVERY === 0) settle();
      const wire = {
        write(bytes: Uint8Array) {
          for (let at = 0; at + 16 <= bytes.length; at += bytes[at]! + 256 * bytes[at + 1]!) {
            saw(`${bytes[at + 4]} ${bytes[at + 6]} ${bytes[at + 16] ?? ""}`);
          }
          return bytes.length;
        },
        pause: () => undefined,
        resume: () => undefined,
        end: () => undefined,
        terminate: () => undefined,
      };
      const limits = { ...ENGINE_LIMITS, itemsMax: 256 };
      const nowMs = () => clock.monotonicMs();
      // Every frame is answered in this turn: none is left for a turn after the end.
      const source = endlessTurns.source();
      const connection = new Connection(1, wire, { limits, handle, nowMs, onFault, source });
      try {
        connection.receive(input);
      } finally {
        connection.ended();
        const holder = connection.greeted?.holder;
        connection.greeted?.warm.close();
        connection.greeted?.gpu.close();
        holder?.abandon();
        holder?.buried();
        // What a device copies is held until it has ended.
        while (connection.working > 0) await new Promise((resolve) => setImmediate(resolve));
        must((holder?.held ?? 0) === 0, "a buried holder holds nothing");
      }
    },
    settle,
    close: () => kit[Symbol.asyncDispose]() as Promise<void>,
  };
}
