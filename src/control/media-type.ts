/** The media types a command and its receipt may have. */
export const JSON_TYPE = "application/json";
export const MSGPACK_TYPE = "application/msgpack";
export type MediaType = typeof JSON_TYPE | typeof MSGPACK_TYPE;

const MSGPACK = /^\s*application\/(?:x-|vnd\.)?msgpack\s*(?:;|,|$)/i;
const JSON_ANYWHERE = /(?:^|,)\s*application\/json\s*(?:;|,|$)/i;
const MSGPACK_ANYWHERE = /(?:^|,)\s*application\/(?:x-|vnd\.)?msgpack\s*(?:;|,|$)/i;

/** Of a body: JSON unless its `Content-Type` says MessagePack. */
export function mediaTypeOf(contentType: string | null): MediaType {
  return contentType !== null && MSGPACK.test(contentType) ? MSGPACK_TYPE : JSON_TYPE;
}

/** Of an answer: what `Accept` names, JSON first; else that of the request. */
export function answerTypeOf(accept: string | null, contentType: string | null): MediaType {
  if (accept !== null && JSON_ANYWHERE.test(accept)) return JSON_TYPE;
  if (accept !== null && MSGPACK_ANYWHERE.test(accept)) return MSGPACK_TYPE;
  return mediaTypeOf(contentType);
}
