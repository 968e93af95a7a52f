#!/bin/sh
# The tests of pages need a Chromium. Where there is none, and installing it asks no questions, it is installed; else this says what is missing.
for name in "$BRIM_CHROMIUM" chromium chromium-browser google-chrome; do
    [ -n "$name" ] && command -v "$name" > /dev/null && exit 0
done
if [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null; then
    echo "installing chromium for the tests of pages"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium > /dev/null && exit 0
fi
echo "no Chromium: the tests of pages will be skipped; install chromium, or set BRIM_CHROMIUM"
