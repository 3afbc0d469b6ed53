import { expect, test } from "bun:test";
import { LookupSource, type SourceHas, type TieredStore } from "../../../src/store/index.ts";
import { ManualClock } from "../../support/index.ts";

const BLOCKS = 2;

/** A peer that answers immediately, and a lookup that queries it every 25 ms. */
function sourceThat(answers: (count: number) => SourceHas[] | null) {
  const clock = new ManualClock();
  const peers = {
    whatHas: (_worker: string, _namespace: unknown, blocks: readonly unknown[]) =>
      Promise.resolve(answers(blocks.length)),
  };
  const ranks = [{ namespace: 1, digests: new Uint8Array(64), keys: new Uint32Array(16) }];
  const store = { clock, peers } as unknown as TieredStore;
  const source = new LookupSource(store, "peer", { ranks: ranks as never, layer: 0 });
  const ask = async (times: number, isWanted: (i: number) => boolean = () => true) => {
    for (let i = 0; i < times; i++) {
      await source.ask(0, BLOCKS, (_rank, block) => isWanted(block));
      clock.advance(25);
    }
  };
  return { source, ask };
}

test("a source that neither has nor computes the next block is silent after 100 ms", async () => {
  let said: SourceHas[] = ["coming", "coming"];
  const { source, ask } = sourceThat(() => said);
  await ask(100);
  expect([source.isSilent(0), source.promises(0, 1)]).toEqual([false, true]);
  said = ["absent", "absent"];
  await ask(3);
  expect([source.isSilent(0), source.promises(0, 1)]).toEqual([false, false]);
  await ask(1);
  expect(source.isSilent(0)).toBe(true);
  // An arrival since then restarts the time.
  expect(source.isSilent(2_600)).toBe(false);
  said = ["coming", "absent"];
  await ask(1);
  expect(source.isSilent(0)).toBe(false);
});

test("an answer about later blocks does not count against the block being fetched", async () => {
  const { source, ask } = sourceThat((count) =>
    count === BLOCKS ? ["here", "absent"] : ["absent"],
  );
  await ask(1);
  await ask(10, (block) => block > 0);
  expect(source.isSilent(0)).toBe(false);
});

test("a source that does not answer is trusted for 500 ms", async () => {
  const { source, ask } = sourceThat(() => null);
  await ask(19);
  expect(source.isSilent(0)).toBe(false);
  await ask(1);
  expect(source.isSilent(0)).toBe(true);
});
