export { type ChatRequest, exactFields, type Fields, isFields } from "./chat-request.ts";
export { chatOfMessages, hasInlineSystem, type MessagesOptions } from "./messages.ts";
export { chatOfResponses } from "./responses.ts";
