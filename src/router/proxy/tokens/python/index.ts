export { type JsonStyle, readJson, writeJson } from "./json.ts";
export * from "./values.ts";
export { codePoints, floatText, reprOf, SPACE, splitLines, strip, textOf } from "./values.ts";
