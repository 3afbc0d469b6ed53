import { expect, test } from "bun:test";
import { Outcome } from "../../src/engine/index.ts";
import type { BlockStore } from "../../src/store/index.ts";
import { describeNative } from "../support/index.ts";
import { openAgent } from "./agent-kit.ts";
import { EngineProcess } from "./engine-process.ts";

describeNative("slots of an engine", () => {
  test.each([
    ["1", 1],
    ["-1", null],
  ])("are near the GPU whose memory it registers: NUMA node %s", async (numa, node) => {
    const reported: (number | null)[] = [];
    const wrapStore = (store: BlockStore) => {
      const open = store.openEngineSession.bind(store);
      store.openEngineSession = (options) => {
        const holder = open(options);
        const near = holder.near.bind(holder);
        holder.near = (wanted) => {
          reported.push(wanted);
          near(wanted);
        };
        return holder;
      };
      return store;
    };
    await using agent = await openAgent({ gpuPlan: `numa=${numa}`, wrapStore });
    const { socketPath } = agent;
    await using engine = await EngineProcess.start(socketPath, "test", "gpu-engine-child.ts");
    expect(reported).toEqual([]);
    expect(await engine.ask("register", "ipc")).toMatchObject({ outcome: Outcome.ok });
    expect(reported).toEqual([node]);
  });
});
