import { parseConfig } from "../../../src/config/index.ts";
import { HearthError, parseJson, stringifyJson } from "../../../src/core/index.ts";
import { decodeManifest, encodeManifest } from "../../../src/identity/index.ts";
import { LINE_FORMATS, parseTraceLine } from "../../../src/traces/index.ts";
import { goldenManifests, repositoryFile, traceLines } from "../corpus.ts";
import { must, type Target } from "../target.ts";

const FACTS = { hostname: "fuzz", memoryBytes: 2 ** 40 };

const text = (input: Uint8Array) => new TextDecoder().decode(input);
const bytesOf = (words: readonly string[]) =>
  words.map((word) => new Uint8Array(Buffer.from(word)));

export function manifests(): Target {
  return {
    name: "manifests",
    corpus: goldenManifests(),
    run(input) {
      const decoded = decodeManifest(input);
      if (!decoded.ok) {
        must(decoded.why.length > 0, "a refusal says why");
        return;
      }
      const again = encodeManifest(decoded.manifest);
      must(Buffer.compare(again, input) === 0, "a manifest has one encoding");
    },
  };
}

export function configs(): Target {
  return {
    name: "configs",
    corpus: [
      repositoryFile("config/hearth.toml"),
      ...bytesOf(['[kv]\nram = "1GiB"\nhigh_water = 0.9\n[engine]\nlease = "30s"\n', "[a.b]\nc=1"]),
    ],
    run(input) {
      const result = parseConfig(text(input), "fuzz.toml", FACTS);
      if (result.ok) return;
      must(result.problems.length > 0, "a refused file has a problem");
      for (const { line, what } of result.problems) {
        must(line >= 0 && what.length > 0, "a problem has a line and words");
      }
    },
  };
}

/** The integers of a document, in order, as they stand there. */
const INTEGERS = /(?<=[[:,]|^)-?(?:0|[1-9][0-9]{0,60})(?=[\],}]|$)/g;

export function json(): Target {
  return {
    name: "json",
    corpus: bytesOf([
      '{"block_hashes":[18446744073709551615,9007199254740993,-9223372036854775808],"n":1.5}',
      '[[1,2,3],{"a":null,"b":true,"c":"d"},1e300,-0.0]',
      "12345678901234567890",
    ]),
    run(input) {
      const source = text(input);
      let value: ReturnType<typeof parseJson>;
      try {
        value = parseJson(source);
      } catch (error) {
        if (error instanceof SyntaxError) return;
        throw error;
      }
      const compact = stringifyJson(value);
      must(stringifyJson(parseJson(compact)) === compact, "what was written reads the same");
      if (/["\s.eE]/.test(source)) return;
      const wanted = source.match(INTEGERS)?.map((digits) => BigInt(digits)) ?? [];
      const got = compact.match(INTEGERS)?.map((digits) => BigInt(digits)) ?? [];
      must(String(wanted) === String(got), "no integer lost a digit");
    },
  };
}

export function traces(): Target {
  return {
    name: "traces",
    corpus: traceLines(),
    run(input) {
      const line = text(input);
      for (const format of LINE_FORMATS) {
        try {
          parseTraceLine(format, line);
        } catch (error) {
          if (error instanceof HearthError && error.code === "TRACE_INVALID") continue;
          throw error;
        }
      }
    },
  };
}
