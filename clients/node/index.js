// SPDX-License-Identifier: MIT
'use strict';
const { fingerprint } = require('./fingerprint.js');
const { WORDS, clean, written, ...message } = require('./message.js'); // those three are the inbox's own
module.exports = { fingerprint, ...require('./inbox.js'), ...message };
