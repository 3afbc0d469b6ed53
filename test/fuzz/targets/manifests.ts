import { type Random, randomBelow } from "../../../src/core/index.ts";
import { decodeManifest, encodeManifest, manifestOf } from "../../../src/identity/index.ts";
import { goldenManifests } from "../corpus.ts";
import { must, shapeOf, type Target } from "../target.ts";
import { oneOf } from "./text-input.ts";

const TEXTS = ["m", "Qwen/Qwen3-32B", "é", "\u{1f525}", "__proto__", "x".repeat(300), "vllm:NHD"];

/** A sound manifest: what is damaged of it lies behind its header. */
function generate(random: Random): Uint8Array {
  const text = () => oneOf(TEXTS, random);
  const maybe = <T>(value: T) => (random.u32() % 2 === 0 ? value : null);
  const size = 1 + randomBelow(random, 8);
  const names = Array.from({ length: randomBelow(random, 5) }, (_, i) => `${text()}${i}`);
  const manifest = manifestOf({
    model: text(),
    dtype: text(),
    layout: text(),
    blockTokens: 1 + randomBelow(random, 512),
    weightsRevision: maybe(text()),
    quantisation: maybe(text()),
    tpSize: size,
    tpRank: randomBelow(random, size),
    loraDigest: maybe(new Uint8Array(32).fill(random.u32())),
    tenantSalt: maybe(text()),
    extra: Object.fromEntries(names.map((name) => [name, text()])),
  });
  return encodeManifest(manifest);
}

/** The encoding of namespace manifests, which engines send in their hello. */
export function manifests(): Target {
  return {
    name: "manifests",
    corpus: goldenManifests(),
    inputBytesMax: 80 * 1024,
    generate,
    run(input, saw) {
      const decoded = decodeManifest(input);
      if (!decoded.ok) {
        must(decoded.why.length > 0, "a refusal says why");
        saw(shapeOf(decoded.why));
        return;
      }
      saw("ok");
      const again = encodeManifest(decoded.manifest);
      must(Buffer.compare(again, input) === 0, "a manifest has one encoding");
    },
  };
}
