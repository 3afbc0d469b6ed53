export { type JsonStyle, readJson, writeJson } from "./json.ts";
export { codePoints, floatText, reprOf, SPACE, splitLines, strip, textOf } from "./text.ts";
export * from "./values.ts";
