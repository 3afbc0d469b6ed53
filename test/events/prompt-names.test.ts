import { expect, test } from "bun:test";
import { blockNameOf, PromptNames } from "../../src/events/index.ts";
import { vllmBlockHashes, vllmExternalHash, vllmNoneHash } from "../../src/identity/index.ts";
import { loadNative } from "../../src/native/index.ts";
import { describeNative } from "../support/index.ts";

/** vLLM's names of the two blocks of 16 tokens of the prompt 1 to 32, with its default seed. */
const NUMBERS = [1403909460543360175n, 1643945449041937783n];
const SECOND = "8e717becdc2054b7a3223b7b844f462c0db0ac86287b752b16d077ad0843c577";

const prompt = {
  tokens: Uint32Array.from({ length: 40 }, (_, at) => at + 1),
  ...{ blockTokens: 16, cacheSalt: null },
};

describeNative("the names that vLLM gives to the blocks of a prompt", () => {
  const { signal } = new AbortController();

  test("are the last eight bytes of digests, up to the last wanted one", async () => {
    const names = new PromptNames(loadNative());
    expect(await names.find(prompt, (name) => name === NUMBERS[1], signal)).toEqual(NUMBERS);
    expect(await names.find(prompt, (name) => name === NUMBERS[0], signal)).toEqual([NUMBERS[0]!]);
    const digest = blockNameOf(Buffer.from(SECOND, "hex"));
    expect(await names.find(prompt, (name) => name === digest, signal)).toEqual(NUMBERS);
  });

  test("use the configured PYTHONHASHSEED, otherwise try 0", async () => {
    const native = loadNative();
    const namesUnder = (seed: string) => {
      const chain = { algorithm: "sha256", parent: vllmNoneHash(native, "sha256", seed) } as const;
      return vllmBlockHashes(native, { ...prompt, ...chain }).map(vllmExternalHash);
    };
    for (const [seed, configured] of [
      ["0", null],
      ["42", "42"],
    ] as const) {
      const wanted = namesUnder(seed);
      const names = new PromptNames(native, configured);
      expect(await names.find(prompt, (name) => name === wanted[1], signal)).toEqual(wanted);
    }
    const [, other] = namesUnder("42");
    const names = new PromptNames(native);
    expect(await names.find(prompt, (name) => name === other, signal)).toEqual([]);
  });

  test("are empty if the engine used none of them", async () => {
    const names = new PromptNames(loadNative());
    expect(await names.find(prompt, () => false, signal)).toEqual([]);
    const salted = { ...prompt, cacheSalt: "tenant" };
    const isKnown = (name: unknown) => NUMBERS.includes(name as bigint);
    expect(await names.find(salted, isKnown, signal)).toEqual([]);
  });
});
