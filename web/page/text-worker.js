// A worker: trains a language model, an iteration after the other, and answers prompts between them.

import { plain, restored } from "./saved.js";
import { trainer } from "./trainer.js";

/** Milliseconds between two answers to the prompt that the visitor has put. */
const EVERY = 600;
/** And between two times that the run is saved, from which it could go on. */
const SAVE_EVERY = 4000;

let training;
let question;
let answered = -Infinity;
let saved = performance.now();
let iterated = false;
let paused = false;
let looping = false;

/** Lets messages in between two iterations; a timer would cost milliseconds each time. */
const turn = () => new Promise((done) => {
  const { port1, port2 } = new MessageChannel();
  port1.onmessage = () => { port1.close(); done(); };
  port2.postMessage(0);
});

const sentence = (error) => String(error?.message ?? error);

async function start({ text, file, kept, paused: waits, question: put }) {
  paused = waits;
  question = put;
  try {
    const { default: init, TextTraining, Saved } = await trainer("text");
    await init();
    if (kept) training = TextTraining.resume(restored(Saved, kept));
    else training = file ? TextTraining.from_file(file, text) : new TextTraining(text);
    postMessage({ is: "about", about: JSON.parse(training.about()) });
  } catch (error) {
    return postMessage({ is: "refused", why: sentence(error) });
  }
  await train();
}

/** Answers the visitor's prompt by the model as it is. */
function answer() {
  if (!question || !training) return;
  const { prompt, drawn } = question;
  answered = performance.now();
  try {
    postMessage({ is: "answers", prompt, answers: JSON.parse(training.answer(prompt, drawn)) });
  } catch (error) {
    postMessage({ is: "answers", prompt, why: sentence(error) });
    question = undefined;
  }
}

/** Tells what the run can go on from. */
function save() {
  saved = performance.now();
  postMessage({ is: "saved", saved: plain(training.save()) });
}

async function train() {
  if (looping || !training) return;
  looping = true;
  while (!paused && !training.is_done()) {
    try {
      postMessage({ is: "record", ...JSON.parse(training.iterate()) });
      iterated = true;
    } catch (error) {
      return postMessage({ is: "failed", why: sentence(error) });
    }
    if (performance.now() - answered > EVERY) answer();
    if (performance.now() - saved > SAVE_EVERY && !training.is_done()) save();
    await turn();
  }
  looping = false;
  if (iterated && !training.is_done()) save();
  answer();
  postMessage({ is: training.is_done() ? "done" : "paused" });
}

onmessage = ({ data }) => {
  if (data.do === "start") start(data);
  if (data.do === "pause") paused = true;
  if (data.do === "go on") {
    paused = false;
    train();
  }
  if (data.do === "ask") {
    question = data.question;
    answer();
  }
  if (data.do === "file" && training) {
    const file = training.file();
    postMessage({ is: "file", file }, [file.buffer]);
  }
};
