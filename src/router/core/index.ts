export { createRouter, prefillId, type RouterParts } from "./create-router.ts";
export { createPromptHasher, type PromptHasher, tokenSalt } from "./prompt-hasher.ts";
