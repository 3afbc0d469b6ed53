import { RequestError, readRouteRequest } from "../../../src/api/index.ts";
import { HearthError, parseJson, type Random, randomBelow } from "../../../src/core/index.ts";
import { must, shapeOf, type Target } from "../target.ts";
import { bytesOf, digits, oneOf } from "./text-input.ts";

const BODIES = [
  '{"model":"m","tokens":[1,2,3,4294967295],"request_id":"a","session_id":"s","priority":-1.5}',
  '{"model":"m","block_hashes":[18446744073709551615,-1,"0xff","12"],"block_tokens":16}',
  '{"tokens":[],"model":"m","overrides":{"mode":"kv","allowed":["a","b"],"seed":7,"rank":0}}',
  '{"model":"m","tokens":[ 1 ,\n2\t],"lora_name":"l","cache_salt":"\\u00e9","phase":"prefill"}',
  '{"model_name":"m","token_ids":[5],"expected_output_tokens":3,"prompt_tokens":1}',
  `{"model":"m","tokens":${"[".repeat(3_000)}}`,
  `{"model":"m","tokens":[1],"overrides":${"[".repeat(2_000)}${"]".repeat(2_000)}}`,
];
const PIECES = ["[", "]", "{", "}", ",", ":", '"', "\\", "-", "0", "1e9", " ", "null", '"tokens"'];

/** Prompts from anybody, in the router's hand-made reader. */
export function prompts(): Target {
  return {
    name: "prompts",
    corpus: BODIES.map(bytesOf),
    generate(random: Random) {
      const body = oneOf(BODIES, random);
      const at = randomBelow(random, body.length);
      const piece =
        random.u32() % 2 === 0
          ? oneOf(PIECES, random)
          : digits(1 + randomBelow(random, 22), random);
      return bytesOf(body.slice(0, at) + piece + body.slice(at + randomBelow(random, 3)));
    },
    run(input, saw) {
      let request: ReturnType<typeof readRouteRequest>;
      try {
        request = readRouteRequest(input);
      } catch (thrown) {
        if (!(thrown instanceof RequestError)) throw thrown;
        must(!(thrown instanceof HearthError) && thrown.message.length < 400, "a short refusal");
        return saw(shapeOf(thrown.message));
      }
      saw(`taken ${request.prompt.kind}`);
      const parsed = parseJson(new TextDecoder("utf-8", { fatal: true }).decode(input));
      must(typeof parsed === "object" && parsed !== null && !Array.isArray(parsed), "an object");
      const { prompt } = request;
      const list = parsed.tokens ?? parsed.token_ids ?? parsed.block_hashes ?? parsed.hashes;
      must(Array.isArray(list), "its prompt is a list");
      const read = prompt.kind === "tokens" ? prompt.tokens : prompt.hashes;
      must(read.length === list.length, "all of it was read");
      for (const [at, value] of list.entries()) {
        const wanted = BigInt.asUintN(64, BigInt(value as string | number | bigint));
        must(BigInt(read[at]!) === wanted, "and is what stands there");
      }
    },
  };
}
