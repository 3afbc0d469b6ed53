import {
  type Json,
  parseJson,
  type Random,
  randomBelow,
  stringifyJson,
} from "../../../src/core/index.ts";
import { must, shapeOf, type Target } from "../target.ts";
import { bytesOf, digits, oneOf, textOf } from "./text-input.ts";

/** A token that is a string, an integer, or a number of another kind. */
const TOKENS = /"(?:[^"\\]|\\.)*"|-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?/g;
const INTEGER = /^-?[0-9]+$/;

/** What is checked here is walked into. */
const LISTS_CHECKED_MAX = 1_000;

const NUMBERS = [
  "18446744073709551615",
  "9007199254740993",
  "-9223372036854775808",
  "9007199254740991",
  "0",
  "-0",
  "1e300",
  "0.1",
];

function number(random: Random): string {
  const kind = randomBelow(random, 4);
  if (kind === 0) return oneOf(NUMBERS, random);
  const sign = random.u32() % 3 === 0 ? "-" : "";
  const integer = `${sign}${digits(1 + randomBelow(random, kind === 1 ? 60 : 20), random)}`;
  return kind === 3 && random.u32() % 4 === 0 ? `${integer}.${digits(3, random)}` : integer;
}

function value(random: Random, depth: number): string {
  const kind = randomBelow(random, depth > 4 ? 5 : 8);
  if (kind < 4) return number(random);
  if (kind === 4) return oneOf(['"x"', '"12345678901234567890"', '"\\u0000\\""', "null"], random);
  const list = Array.from({ length: randomBelow(random, 5) }, () => value(random, depth + 1));
  if (kind < 7) return `[${list.join(random.u32() % 2 === 0 ? "," : " ,\n")}]`;
  return `{${list.map((text, i) => `"k${i}": ${text}`).join(",")}}`;
}

/** Numbers in the order in which they are found. */
function* numbersOf(json: Json): Generator<number | bigint> {
  if (typeof json === "number" || typeof json === "bigint") yield json;
  else if (typeof json === "object" && json !== null)
    for (const item of Object.values(json)) yield* numbersOf(item);
}

/** Compares with what BigInt makes of the same digits. Only lists keep all they hold in order. */
function checkIntegers(text: string, json: Json): void {
  if (text.includes("{")) return;
  const tokens = (text.match(TOKENS) ?? []).filter((token) => !token.startsWith('"'));
  const numbers = [...numbersOf(json)];
  must(tokens.length === numbers.length, "each number is there once");
  for (const [i, token] of tokens.entries()) {
    const got = numbers[i]!;
    if (!INTEGER.test(token)) must(Object.is(got, Number(token)), "a fraction is a double");
    else must(BigInt(got) === BigInt(token), "no integer lost a digit");
  }
}

function plainParse(text: string): { readonly ok: boolean; readonly value?: unknown } {
  try {
    return { ok: true, value: JSON.parse(text) };
  } catch {
    return { ok: false };
  }
}

/** Apart from integers that a double rounds, what the runtime's own parser makes of it. */
function checkAlike(json: Json, plain: unknown): void {
  if (typeof json === "bigint") {
    must(Number(json) === plain && !Number.isSafeInteger(plain), "a bigint where one is needed");
  } else if (typeof json === "object" && json !== null) {
    const other = plain as Record<string, unknown>;
    must(Object.keys(json).length === Object.keys(other).length, "the same keys");
    for (const [key, item] of Object.entries(json)) checkAlike(item, other[key]);
  } else must(Object.is(json, plain), "the same value");
}

/** JSON with integers of any length. */
export function json(): Target {
  return {
    name: "json",
    corpus: [
      '{"block_hashes":[18446744073709551615,9007199254740993,-9223372036854775808],"n":1.5}',
      '[[1,2,3],{"a":null,"b":true,"__proto__":"d"},1e300,-0.0]',
      "12345678901234567890",
    ].map(bytesOf),
    inputBytesMax: 128 * 1024,
    generate: (random) => bytesOf(value(random, 0)),
    run(input, saw) {
      const text = textOf(input);
      const plain = plainParse(text);
      let parsed: Json;
      try {
        parsed = parseJson(text);
      } catch (error) {
        if (!(error instanceof SyntaxError)) throw error;
        saw(shapeOf(error.message).slice(0, 24));
        must(!plain.ok || /[0-9.]{400}|[[{]{100}/.test(text), "only what is dear is refused");
        return;
      }
      must(plain.ok, "what is no JSON is refused");
      saw(`${typeof parsed} ${Array.isArray(parsed) ? Math.min(4, parsed.length) : ""}`);
      if ((text.match(/[[{]/g)?.length ?? 0) > LISTS_CHECKED_MAX) return;
      checkAlike(parsed, plain.value);
      checkIntegers(text, parsed);
      const compact = stringifyJson(parsed);
      must(stringifyJson(parseJson(compact)) === compact, "what was written reads the same");
    },
  };
}
