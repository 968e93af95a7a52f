#!/bin/sh
# The tests of pages need a Chromium. Where there is none, and installing it asks no questions, it is installed; else this says what is missing.
for name in "$BRIM_CHROMIUM" chromium-headless-shell chromium chromium-browser google-chrome; do
    [ -n "$name" ] && command -v "$name" > /dev/null && exit 0
done
if [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null; then
    echo "installing chromium for the tests of pages"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    for package in chromium-headless-shell chromium; do
        apt-get install -y -qq --no-install-recommends "$package" > /dev/null && exit 0
    done
fi
echo "no Chromium: the tests of pages will be skipped; install chromium, or set BRIM_CHROMIUM"
